"""A report's page in Chromium, as the tests of in_chromium.py drive it, and its data, as they read it."""
import base64
import json
import os
import re
import struct
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WIDE, NARROW = (1280, 900), (400, 860)


def start_browser():
    options = Options()
    options.binary_location = os.environ["CHROMIUM"]
    # As root in a container there is no sandbox and little shared memory; without a network nothing is asked for.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking",
                 "--host-resolver-rules=MAP * ~NOTFOUND", "--force-color-profile=srgb", "--no-first-run"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(os.environ["CHROMEDRIVER"]), options=options)


# ---- the data of a page, read without the page's script ------------------------------------


class Data:
    """about and the matrices of a report's file."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.text = f.read()
        self.about = json.loads(self.script("about"))
        self.experts, self.layers = self.about["experts"], self.about["layers"]
        self.matrices = {m["id"]: m for m in self.about["matrices"]}

    def script(self, name):
        at = self.text.index(f'id="{name}"')
        return self.text[self.text.index(">", at) + 1:self.text.index("</script>", at)]

    def values(self, name, layer):
        data = base64.b64decode(self.script(f"{name}-{self.layers[layer]}"))
        code, size = {"f32": ("f", 4), "f16": ("e", 2), "u16": ("H", 2), "u32": ("I", 4)}[self.matrices[name]["type"]]
        return struct.unpack(f"<{len(data) // size}{code}", data)

    def colour(self, name, layer, source, target, values=None):
        """What a cell of two different experts must look like, or None where it was never observed."""
        m, at = self.matrices[name], source * self.experts + target
        value = (values or self.values(name, layer))[at]
        if self.values("tokens", layer)[at] == 0 or value != value:
            return None
        part = (value - m["low"]) / (m["high"] - m["low"])
        step = min(255, max(0, int(part * 255 + 0.5)))
        return list(bytes.fromhex(self.about[m["map"]][6 * step:6 * step + 6]))


def rgb(text):
    """'rgb(1, 2, 3)' or '#010203' -> [1, 2, 3]."""
    return list(bytes.fromhex(text[1:])) if text.startswith("#") else [int(n) for n in re.findall(r"\d+", text)[:3]]


def luminance(colour):
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class Page(unittest.TestCase):
    """A test on DIRECTORY/name/report.html; one browser serves all."""
    name = "demo"
    directory, browser = ".", None
    data = {}

    @classmethod
    def setUpClass(cls):
        if Page.browser is None:
            Page.browser = start_browser()
            unittest.addModuleCleanup(Page.browser.quit)

    def setUp(self):
        self.path = os.path.abspath(os.path.join(Page.directory, self.name, "report.html"))
        if self.name not in Page.data:
            Page.data[self.name] = Data(self.path)
        self.d = Page.data[self.name]

    def tearDown(self):
        self.assertEqual(self.browser.get_log("browser"), [], "the console of the browser is not empty")

    # ---- the browser ----

    def cdp(self, method, **arguments):
        return self.browser.execute_cdp_cmd(method, arguments)

    def wear(self, scheme, media=""):
        self.cdp("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, size, scale=1):
        self.cdp("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=scale, mobile=False)

    def open(self, size=WIDE, scheme="light", scale=1):
        self.resize(size, scale)
        self.wear(scheme)
        self.browser.get("about:blank")
        self.browser.get("file://" + self.path)

    def js(self, text, *arguments):
        return self.browser.execute_script("return " + text, *arguments)

    def id(self, name):
        return self.browser.find_element(By.ID, name)

    def wait(self, condition, what):
        WebDriverWait(self.browser, 60, poll_frequency=0.05).until(lambda _: condition(), f"waited in vain: {what}")

    def frames(self):
        """Lets the page draw twice, so that what a resize or a change of colours asked for is done."""
        self.browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));")

    def keys(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def shifted(self, key):
        ActionChains(self.browser).key_down(Keys.SHIFT).send_keys(key).key_up(Keys.SHIFT).perform()

    def point(self, x, y):
        self.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def pixels(self, canvas, x, y, size=1):
        """The colours of size x size pixels from (x, y) on, read from a copy: the page's own canvases are for drawing."""
        data = self.js("""((from, x, y, n) => {
            const g = new OffscreenCanvas(n, n).getContext('2d', {willReadFrequently: true});
            g.drawImage(from, -x, -y);
            return [...g.getImageData(0, 0, n, n).data];
        })(...arguments)""", canvas, x, y, size)
        return [data[i:i + 3] for i in range(0, len(data), 4)]

    def pixel(self, canvas, x, y):
        return self.pixels(canvas, x, y)[0]

    def variable(self, name):
        return rgb(self.js("getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()", name))

    # ---- the page ----

    def cell(self):
        """The table beside the matrix: {row: text}."""
        rows = self.js("[...document.querySelectorAll('#cell tr')].map((r) => [r.cells[0].textContent, r.cells[1].textContent])")
        return dict(rows)

    def place(self):
        """(layer index, source, target) that the table beside the matrix tells of."""
        name, text = next(iter(self.cell().items()))
        layer = self.d.layers.index(int(name.split()[1]))
        self_of = re.fullmatch(r"expert (\d+) itself", text)
        if self_of:
            return layer, int(self_of[1]), int(self_of[1])
        source, target = re.fullmatch(r"expert (\d+) → (\d+)", text).groups()
        return layer, int(source), int(target)

    def focus_matrix(self):
        self.js("document.getElementById('big').focus()")

    def kinds(self):
        return self.browser.find_elements(By.CSS_SELECTOR, "#kinds input")

    def small(self, layer):
        return self.browser.find_elements(By.CSS_SELECTOR, "#grid canvas")[layer]

    def show_small(self, layer):
        """Scrolls a layer of the overview into view and waits until it is drawn; its canvas."""
        canvas = self.small(layer)
        self.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
        self.wait(lambda: self.js("arguments[0].width", canvas) == self.d.experts, f"layer index {layer} drawn")
        return canvas

    def focused(self):
        return self.js("document.activeElement.id || document.activeElement.closest('[id]').id")

    def box(self, element):
        return self.js("(({left, top, right, bottom}) => ({left, top, right, bottom}))(arguments[0].getBoundingClientRect())", element)
