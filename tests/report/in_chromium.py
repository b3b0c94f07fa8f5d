"""What a reader sees and does on the page of exfold-inspect report, in Chromium (tests/report/run.sh).

    in_chromium.py DIRECTORY [Class.test ...]

DIRECTORY has demo/report.html, the demo model with validation.json beside its tables, and
wide/report.html of make_wide_tables.c.  Numbers and colours on the page are compared with those
that this file reads from the page's data, or computes by the formulas of make_wide_tables.c.
Every test ends by asking the browser's console for complaints; one is a failure.
"""
import base64
import json
import os
import re
import struct
import sys
import unittest

from page import NARROW, WIDE, Page, contrast, luminance, rgb
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

HEADS = ["variant", "PPL ± std. error", "KL mean", "worst domain", "KL 99 %", "KL max", "same top", "output error", "operations",
         "expert bytes", "served by", ""]


# ---- what every report must do ------------------------------------------------------------------


class Every:
    def test_no_width_scrolls_the_page(self):
        for scheme in ("light", "dark"):
            self.open(scheme=scheme)
            for size in (WIDE, NARROW, (320, 700), (1920, 1000)):
                self.resize(size)
                self.frames()
                self.assertLessEqual(self.js("document.documentElement.scrollWidth"), size[0], f"{size} {scheme}")
                out = self.js("""[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, .skip, script')
                              && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))""")
                self.assertEqual(out, [], f"beyond the right edge at {size}")

    def test_the_header_leads_to_every_section(self):
        for size in (WIDE, NARROW):
            self.open(size)
            sections = self.js("[...document.querySelectorAll('main > section')].map((s) => s.id)")
            links = self.browser.find_elements(By.CSS_SELECTOR, "header nav a")
            self.assertEqual([a.get_attribute("href").split("#")[1] for a in links], sections)
            for link, name in zip(links, sections):
                self.js("scrollTo(0, 0)")
                link.click()
                heading, header = self.box(self.id("h-" + name)), self.box(self.browser.find_element(By.TAG_NAME, "header"))
                self.assertGreaterEqual(heading["top"], max(0, header["bottom"]) - 1, f"{name} at {size} is under the header")
                self.assertLess(heading["bottom"], size[1], f"{name} at {size}")

    def test_it_fetches_nothing(self):
        self.open()
        self.assertEqual(self.js("performance.getEntriesByType('resource').length"), 0)
        self.assertIn("default-src 'none'", self.js("document.querySelector('meta[http-equiv=Content-Security-Policy]').content"))

    def test_colours_follow_the_system_and_the_button(self):
        self.open(scheme="dark")
        dark = rgb(self.js("getComputedStyle(document.body).backgroundColor"))
        self.assertLess(luminance(dark), 0.05)
        self.wear("light")
        self.frames()
        light = rgb(self.js("getComputedStyle(document.body).backgroundColor"))
        self.assertGreater(luminance(light), 0.9)
        button, worn = self.id("theme"), []
        for _ in range(4):
            worn.append((button.text, rgb(self.js("getComputedStyle(document.body).backgroundColor"))))
            button.click()
        self.assertEqual(worn, [("Colours: as the system", light), ("Colours: light", light), ("Colours: dark", dark),
                                ("Colours: as the system", light)])

    def test_the_matrix_is_drawn_again_in_new_colours(self):
        self.open(scheme="light")
        for scheme in ("dark", "light"):
            self.wear(scheme)
            self.frames()
            canvas = self.show_small(0)
            self.wait(lambda: self.pixel(canvas, 2, 2) == self.variable("--paper"), f"an expert with itself in {scheme}")

    def test_text_can_be_read_in_both_colours(self):
        for scheme in ("light", "dark"):
            self.open(scheme=scheme)
            for name in ("--text", "--soft", "--link"):
                for ground in ("--paper", "--raised"):
                    self.assertGreaterEqual(contrast(self.variable(name), self.variable(ground)), 4.5, f"{name} on {ground}, {scheme}")

    def test_every_kind_of_matrix_has_its_numbers_and_colours(self):
        self.open()
        layer, source, target = self.place()
        for radio, m in zip(self.kinds(), self.d.about["matrices"], strict=True):
            self.js("arguments[0].scrollIntoView({block: 'center'})", radio)  # not under the header
            radio.click()
            self.assertIn(m["name"] + ", layer " + str(self.d.layers[layer]), self.id("big").get_attribute("aria-label"))
            canvas = self.show_small(layer)
            if not m["log"]:
                self.wait(lambda: self.pixel(canvas, target, source) == self.d.colour(m["id"], layer, source, target), m["id"])
            shown = self.cell()[m["name"]].replace("about ", "")
            value = self.d.values(m["id"], layer)[source * self.d.experts + target]
            self.assertAlmostEqual(float(shown), value, delta=abs(value) * 0.006, msg=m["id"])

    def test_pointing_at_a_cell_tells_of_it(self):
        self.open()
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.id("big"))
        box, seen = self.box(self.id("big")), set()
        values = self.d.values("scalar", 0)
        for share in (0.15, 0.3, 0.45, 0.6):
            for across in (0.2, 0.35, 0.5, 0.65):
                x = round(box["left"] + across * (box["right"] - box["left"]))
                y = round(box["top"] + share * (box["bottom"] - box["top"]))
                self.point(x, y)
                layer, source, target = self.place()
                seen.add((source, target))
                if source == target:
                    continue
                colour = self.d.colour("scalar", layer, source, target, values) or self.variable("--grey")
                # The frame around the cell may cover the pixel itself where cells are small.
                near = self.pixels(self.id("big"), x - box["left"] - 2, y - box["top"] - 2, 5)
                self.assertIn(colour, near, f"{source} -> {target}")
        self.assertEqual(len(seen), 16)
        before = self.place()
        self.point(box["left"] + 2, box["top"] + 2)  # outside of the cells
        self.assertEqual(self.place(), before)

    def test_the_matrix_obeys_the_keyboard(self):
        self.open()
        self.focus_matrix()
        last, layers = self.d.experts - 1, len(self.d.layers) - 1
        self.keys(*[Keys.ARROW_UP] * 3, Keys.HOME)
        self.assertEqual(self.place(), (0, 0, 0))
        for key, want in ((Keys.ARROW_RIGHT, (0, 0, 1)), (Keys.ARROW_DOWN, (0, 1, 1)), (Keys.ARROW_DOWN, (0, 2, 1)),
                          (Keys.ARROW_UP, (0, 1, 1)), (Keys.ARROW_LEFT, (0, 1, 0)), (Keys.ARROW_LEFT, (0, 1, 0)),
                          (Keys.END, (0, 1, last)), (Keys.ARROW_RIGHT, (0, 1, last)), (Keys.HOME, (0, 1, 0)),
                          (Keys.PAGE_DOWN, (1, 1, 0)), (Keys.PAGE_UP, (0, 1, 0)), (Keys.PAGE_UP, (0, 1, 0))):
            self.keys(key)
            self.assertEqual(self.place(), want)
        self.shifted(Keys.ARROW_RIGHT)
        self.assertEqual(self.place(), (0, 1, 10))
        self.shifted(Keys.ARROW_DOWN)
        self.assertEqual(self.place(), (0, 11, 10))
        self.keys(*[Keys.PAGE_DOWN] * (layers + 2))
        self.assertEqual(self.place()[0], layers)
        self.assertEqual(self.js("scrollY > 0 || document.activeElement.id === 'big'"), True)

    def test_enter_goes_to_the_best_target(self):
        self.open()
        self.focus_matrix()
        for _ in range(4):
            self.keys(Keys.ARROW_DOWN, Keys.ENTER)
            layer, source, target = self.place()
            seen = self.d.values("tokens", layer)[source * self.d.experts:][:self.d.experts]
            losses = self.d.values("loss", layer)[source * self.d.experts:][:self.d.experts]
            best = min((v, t) for t, v in enumerate(losses) if t != source and seen[t])[1]
            self.assertEqual(target, best)
            self.assertTrue(self.cell()[f"best target of {source}"].startswith(f"{best} (loss "))

    def test_layers_are_chosen_in_every_way(self):
        self.open()
        last = len(self.d.layers) - 1
        layer = Select(self.id("layer"))
        self.assertEqual([o.text for o in layer.options], [str(n) for n in self.d.layers])
        self.id("previous").click()
        self.assertEqual(self.place()[0], 0)
        self.id("next").click()
        self.assertEqual(self.place()[0], 1)
        layer.select_by_index(last)
        self.assertEqual(self.place()[0], last)
        self.id("next").click()
        self.assertEqual((self.place()[0], self.id("layer").get_attribute("value")), (last, str(last)))
        self.id("previous").click()
        self.assertEqual((self.place()[0], self.id("layer").get_attribute("value")), (last - 1, str(last - 1)))
        self.show_small(1).click()
        self.assertEqual((self.place()[0], self.focused()), (1, "big"))
        links = self.browser.find_elements(By.CSS_SELECTOR, "#layers a[data-layer]")
        self.assertEqual([a.text for a in links], [str(n) for n in self.d.layers])
        links[last].click()
        self.assertEqual(self.place()[0], last)
        pressed = self.browser.find_elements(By.CSS_SELECTOR, "#grid button[aria-pressed=true]")
        self.assertEqual([b.get_attribute("data-i") for b in pressed], [str(last)])

    def test_the_overview_obeys_the_keyboard(self):
        self.open()
        last, row = len(self.d.layers) - 1, self.js("getComputedStyle(document.getElementById('grid')).gridTemplateColumns.split(' ').length")
        buttons = self.browser.find_elements(By.CSS_SELECTOR, "#grid button")
        self.assertEqual([b.get_attribute("tabindex") for b in buttons], ["0"] + ["-1"] * last)
        self.js("arguments[0].focus()", buttons[0])
        for key, want in ((Keys.ARROW_LEFT, 0), (Keys.ARROW_RIGHT, 1), (Keys.ARROW_DOWN, 1 + row if 1 + row <= last else 1),
                          (Keys.ARROW_UP, 1), (Keys.END, last), (Keys.ARROW_RIGHT, last), (Keys.HOME, 0), (Keys.ARROW_RIGHT, 1)):
            self.keys(key)
            self.assertEqual(self.js("Number(document.activeElement.dataset.i)"), want)
        self.keys(Keys.ENTER)
        self.assertEqual((self.place()[0], self.focused()), (1, "big"))

    def test_tab_visits_every_control_once_and_shows_it(self):
        self.open()
        visited = []
        for _ in range(200):
            self.keys(Keys.TAB)
            if self.js("document.activeElement === document.body"):
                break
            visited.append(self.js("""document.activeElement.id || document.activeElement.name || document.activeElement.hash ||
                                   document.activeElement.className || document.activeElement.closest('[id]').id"""))
            self.assertNotEqual(self.js("getComputedStyle(document.activeElement).outlineStyle"), "none", visited[-1])
        links = self.js("[...document.querySelectorAll('header nav a')].map((a) => a.hash)")
        self.assertEqual(visited[:1 + len(links) + 1], ["#main"] + links + ["theme"])
        for name in ("kind", "previous", "layer", "next", "big", "grid"):
            self.assertEqual(visited.count(name), 1, f"{name} in {visited}")

    def test_the_skip_link_appears_and_leads_to_the_contents(self):
        self.open()
        skip = self.browser.find_element(By.CLASS_NAME, "skip")
        self.assertLess(self.box(skip)["right"], 0)
        self.keys(Keys.TAB)
        self.assertGreaterEqual(self.box(skip)["left"], 0)
        self.keys(Keys.ENTER)
        self.assertEqual(self.focused(), "main")

    def test_canvases_are_sharp_and_follow_the_width(self):
        self.open(scale=2)
        for name in ("big", "norms"):
            self.assertAlmostEqual(self.js("arguments[0].width / arguments[0].getBoundingClientRect().width", self.id(name)), 2, delta=0.01)
        self.resize(NARROW)
        self.frames()
        for name in ("big", "norms"):
            box = self.box(self.id(name))
            self.assertLessEqual(box["right"], NARROW[0])
            self.wait(lambda: abs(self.js("arguments[0].width", self.id(name)) - (box["right"] - box["left"])) <= 1, f"{name} redrawn")

    def test_it_prints_light_and_whole(self):
        self.open(scheme="dark")
        self.js("(window.before = [], addEventListener('beforeprint', () => before.push("
                "getComputedStyle(document.body).backgroundColor, [...document.querySelectorAll('#grid canvas')].filter((c) => c.width === "
                f"{self.d.experts}).length)))")
        pdf = base64.b64decode(self.cdp("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
        self.assertEqual(pdf[:5], b"%PDF-")
        self.assertGreaterEqual(len(re.findall(rb"/Type\s*/Page\b", pdf)), 2)
        self.assertEqual(self.js("before"), ["rgb(255, 255, 255)", len(self.d.layers)])
        self.assertLess(luminance(rgb(self.js("getComputedStyle(document.body).backgroundColor"))), 0.05, "dark again after printing")
        self.resize((718, 1000))  # A4 within Chromium's margins
        self.wear("light", "print")
        self.frames()
        for name in ("nav", "#theme", ".toolbar", ".skip"):
            self.assertEqual(self.js("getComputedStyle(document.querySelector(arguments[0])).display", name), "none")
        for table in self.browser.find_elements(By.CSS_SELECTOR, ".scroll table"):
            self.assertLessEqual(self.box(table)["right"], 718, "a table is cut off on paper")

    def test_without_its_script_the_tables_are_there(self):
        self.cdp("Emulation.setScriptExecutionDisabled", value=True)
        try:
            self.open()
        finally:
            self.cdp("Emulation.setScriptExecutionDisabled", value=False)
        self.assertEqual(self.js("document.body.classList.contains('ready')"), False)
        shown = self.js("[...document.querySelectorAll('main > section, nav a')].filter((e) => e.offsetParent).map((e) => e.id || e.hash)")
        self.assertEqual(sorted(shown), sorted(["overview", "validation", "layers", "budgets", "facts", "#overview", "#validation", "#layers",
                                                 "#budgets", "#facts"]))
        self.assertEqual(self.js("document.querySelectorAll('#layers tbody tr').length"), len(self.d.layers))
        self.assertEqual(self.js("document.querySelector('noscript').children.length"), 1)


class Demo(Every, Page):
    name = "demo"

    def validation(self):
        with open(os.path.join(self.directory, "demo", "validation.json"), encoding="utf-8") as f:
            return json.load(f)["variants"]

    def rows(self):
        text = "[...document.querySelectorAll('#validation tr')].map((r) => [...r.cells].map((c) => c.innerText.replace(/\\u00a0/g, ' ')))"
        return self.js(text)

    def test_validation_is_told_in_words(self):
        self.open()
        rows, variants = self.rows(), self.validation()
        self.assertEqual(rows[0], HEADS)
        self.assertEqual(len(rows), len(variants) + 1)
        for row, v in zip(rows[1:], variants):
            self.assertEqual(row[0].split("\n"), [v["words"], v["name"]])
            self.assertEqual(row[1].split(), [f"{v['ppl']:.4f}", "±", f"{v['ppl_se']:.4f}"])
            self.assertEqual(row[2].split(), [f"{v['kl_mean']:.5f}", "±", f"{v['kl_half_width']:.5f}"])
            worst = v["worst_domain"]
            self.assertEqual(row[3].split(), [f"{v['domains'][worst]['kl_mean']:.5f}", worst])
            self.assertEqual(row[4:8], [f"{v['kl_p99']:.5f}", f"{v['kl_max']:.3f}", f"{100 * v['top1']:.2f} %", f"{v['output_error']:.4f}"])
            for cell, share, experts in (row[8], "flops", "token"), (row[9], "bytes", "batch"):
                part = v["cost"][f"expert_{share}_share"]
                self.assertEqual(cell.split(), [f"{100 * part:.1f}", "%", f"{v['experts_per_' + experts]:.2f}", "experts"])
            self.assertEqual(row[10].split(), v["served_by"] + ["~" + name for name in v["served_otherwise_by"]])
            mark = "frontier" if v["on_frontier"] else v["role"] if v["role"] in ("baseline", "half") else ""
            self.assertEqual(row[11], (mark + " " + (v["constraint_words"] or "")).strip())
        self.assertIn(["2 experts per token, joint weights", "P2:projector=joint"], [row[0].split("\n") for row in rows])

    def test_all_columns_of_the_validation_are_in_sight_at_1280(self):
        self.open(WIDE)
        table = self.browser.find_element(By.CSS_SELECTOR, "#validation .scroll")
        self.assertEqual(self.js("arguments[0].scrollWidth - arguments[0].clientWidth", table), 0)
        for cell in self.browser.find_elements(By.CSS_SELECTOR, "#validation th, #validation td"):
            self.assertLessEqual(self.box(cell)["right"], WIDE[0])
        self.assertEqual(self.js("[...document.querySelectorAll('#validation th, #validation td')].filter((c) => c.scrollWidth > c.clientWidth + 1).length"), 0)

    def test_at_400_the_variant_stays_in_sight(self):
        self.open(NARROW)
        table = self.browser.find_element(By.CSS_SELECTOR, "#validation .scroll")
        first = self.browser.find_element(By.CSS_SELECTOR, "#validation tbody th")
        left = self.box(first)["left"]
        self.assertLess(self.box(first)["right"], NARROW[0] / 2)
        self.js("arguments[0].scrollLeft = 100000", table)
        self.assertGreater(self.js("arguments[0].scrollLeft", table), 100)
        self.assertEqual(self.box(first)["left"], left)
        last = self.browser.find_elements(By.CSS_SELECTOR, "#validation tbody tr:first-child td")[-1]
        self.assertLessEqual(self.box(last)["right"], NARROW[0])

    def test_budgets_are_drawn_layer_by_layer(self):
        self.open()
        text = "[...document.querySelectorAll('#budgets tr')].map((r) => [...r.cells].map((c) => c.innerText))"
        rows, budgets = self.js(text), self.d.about["budgets"]
        self.assertEqual([b["rule"] for b in budgets], ["stream", "output", "top_p"])
        self.assertEqual(rows[:2], [["layer", "P = 2"], [b["rule"] for b in budgets]])
        for i, number in enumerate(self.d.layers):
            self.assertEqual(rows[2 + i], [str(number)] + [f"{b['layers'][i]['mean']:.3f}" for b in budgets])
        self.assertEqual(rows[-2], ["all"] + [f"{b['mean']:.3f}" for b in budgets])
        self.assertEqual(rows[-1], ["λ"] + [f"{b['lambda']:.6g}" for b in budgets])
        top_k = len(budgets[0]["layers"][0]["kept"])
        cells = self.browser.find_elements(By.CSS_SELECTOR, "#budgets tbody td")
        for cell, mean in zip(cells, [b["layers"][i]["mean"] for i in range(len(self.d.layers)) for b in budgets], strict=True):
            share = self.js("getComputedStyle(arguments[0]).backgroundSize", cell).split()
            self.assertAlmostEqual(float(share[0].rstrip("%")), 100 * mean / top_k, delta=0.06)
            self.assertEqual(share[1], "4px")

    def test_pools_and_norms_are_those_of_the_layer(self):
        self.open()
        for layer in (0, len(self.d.layers) - 1):
            Select(self.id("layer")).select_by_index(layer)
            want = [f"Static pool of {p['size']} by {p['by']}: " + " ".join(map(str, p["members"][layer])) for p in self.d.about["pools"]]
            self.assertEqual([p.text for p in self.browser.find_elements(By.CSS_SELECTOR, "#pools p")], want)
            norms = struct.unpack(f"<{self.d.experts}f", base64.b64decode(self.d.script(f"norms-{self.d.layers[layer]}")))
            self.assertIn(f"at expert {norms.index(max(norms))}, least", self.id("norms-text").text)
            self.assertIn(f"at expert {norms.index(min(norms))}", self.id("norms-text").text.split("least")[1])


class Wide(Every, Page):
    name = "wide"
    COLD = 37

    def distance(self, s, t):
        apart = abs((s - (s > self.COLD)) - (t - (t > self.COLD)))
        return min(apart, 127 - apart)

    def seen(self, s, t):
        return self.COLD not in (s, t) and self.distance(s, t) % 9 != 0

    def test_it_has_the_size_of_a_released_model(self):
        self.assertEqual((len(self.d.layers), self.d.experts), (48, 128))
        self.assertTrue(16e6 < os.path.getsize(self.path) < 18e6, os.path.getsize(self.path))

    def test_numbers_are_those_that_were_made(self):
        self.open()
        self.focus_matrix()
        self.keys(Keys.HOME)
        for presses in (1, 17, 29):
            self.keys(*[Keys.PAGE_DOWN] * presses, *[Keys.ARROW_DOWN] * 3, *[Keys.ARROW_RIGHT] * 7)
            layer, s, t = self.place()
            if not self.seen(s, t):
                self.keys(Keys.ARROW_RIGHT)
                layer, s, t = self.place()
            cell = self.cell()
            self.assertEqual(float(cell["scalar S"]), ((31 * s + 17 * t + 7 * layer) % 257 - 128) / 128)
            self.assertAlmostEqual(float(cell["relative loss"]), (13 * s + 29 * t + 3 * layer) % 1021 / 1024, delta=1e-6)
            d = self.distance(s, t)
            self.assertEqual(int(cell["tokens behind the pair"]), 560 * (1 + 3 * ((d - d // 9 - 1 + layer) % 56)))
            self.assertEqual(int(cell[f"tokens routed to {s}"]), 560 * 56 * 167 // 7)
        self.assertEqual(layer, 47)

    def test_pairs_without_evidence_are_grey_and_say_so(self):
        self.open()
        canvas, grey = self.show_small(0), self.variable("--grey")
        for s, t in ((0, 9), (9, 0), (self.COLD, 5), (5, self.COLD), (127, 118)):
            self.assertFalse(self.seen(s, t))
            self.assertEqual(self.pixel(canvas, t, s), grey, f"{s} -> {t}")
        self.focus_matrix()
        self.keys(Keys.HOME)
        self.shifted(Keys.ARROW_RIGHT)
        self.keys(Keys.ARROW_LEFT)
        self.assertEqual(self.place(), (0, 0, 9))
        self.assertEqual(self.cell()["no evidence"], "never observed together")
        self.keys(*[Keys.ARROW_DOWN] * self.COLD)
        self.assertEqual(self.cell()[f"tokens routed to {self.COLD}"], "0 (cold)")
        self.assertEqual(self.cell()[f"best target of {self.COLD}"], "none")
        before = self.place()
        self.keys(Keys.ENTER)
        self.assertEqual(self.place(), before)

    def test_layers_are_drawn_when_they_come_into_view(self):
        self.open()
        drawn = "[...document.querySelectorAll('#grid canvas')].filter((c) => c.width === arguments[0]).length"
        self.assertLess(self.js(drawn, self.d.experts), len(self.d.layers))
        canvas = self.show_small(47)
        s, t = 3, 100
        self.assertTrue(self.seen(s, t))
        self.assertEqual(self.pixel(canvas, t, s), self.d.colour("scalar", 47, s, t))

    def test_that_there_are_no_budgets_is_said(self):
        self.open()
        self.assertIn("These tables have no budgets per token; exfold-solve --set budgets=4", self.id("budgets").text)

    def test_that_nothing_was_validated_is_said(self):
        self.open()
        self.assertIn("No validation lies beside the tables", self.id("validation").text)
        self.assertIn("exfold-validate RECIPE.yaml", self.id("validation").text)


def main():
    Page.directory, names = sys.argv[1], sys.argv[2:]
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names, sys.modules[__name__]) if names else loader.loadTestsFromModule(sys.modules[__name__])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(failed > 0 or result.testsRun == 0)


if __name__ == "__main__":
    main()
