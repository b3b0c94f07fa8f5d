#!/usr/bin/env python3
"""make_colours.py - prints the two colour maps of src/inspect/drawing_scale.c.

usage: python3 scripts/make_colours.py

Each map is a path through OKLab (Ottosson's space, in which equal distances look
equally different), cut into pieces of equal length, in 8-bit sRGB.  sequential:
indigo over green to pale yellow, lightness rising all the way.  diverging: blue
over near white to orange-red, lightness the same at equal distance from the
middle.  Lightness alone tells low from high, and blue from orange is told apart
in every common colour blindness.
"""
import math

POINTS = 33
SEQUENTIAL = [(0.21, 0.085, 288), (0.38, 0.120, 268), (0.55, 0.095, 215), (0.71, 0.130, 160), (0.86, 0.155, 120), (0.965, 0.090, 103)]
DIVERGING = [(0.33, 0.110, 258), (0.55, 0.120, 248), (0.77, 0.070, 238), (0.965, 0.004, 160), (0.77, 0.090, 62), (0.55, 0.140, 42), (0.33, 0.105, 30)]


def lab(lch):
    return (lch[0], lch[1] * math.cos(math.radians(lch[2])), lch[1] * math.sin(math.radians(lch[2])))


def spline(points, t):
    """Catmull-Rom through points at t in [0, 1]."""
    x = t * (len(points) - 1)
    i = min(int(x), len(points) - 2)
    x -= i
    p = [points[min(max(i + k, 0), len(points) - 1)] for k in (-1, 0, 1, 2)]
    return tuple(0.5 * (2 * b + (c - a) * x + (2 * a - 5 * b + 4 * c - d) * x * x + (3 * b - a - 3 * c + d) * x ** 3) for a, b, c, d in zip(*p))


def srgb(c):
    l, m, s = ((c[0] + 0.3963377774 * c[1] + 0.2158037573 * c[2]) ** 3, (c[0] - 0.1055613458 * c[1] - 0.0638541728 * c[2]) ** 3,
               (c[0] - 0.0894841775 * c[1] - 1.2914855480 * c[2]) ** 3)
    linear = (4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
              -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)
    gamma = (12.92 * v if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055 for v in (min(max(v, 0.0), 1.0) for v in linear))
    return tuple(round(255 * v) for v in gamma), min(linear), max(linear)


def equal_steps(points):
    fine = [spline(points, i / 20000) for i in range(20001)]
    length = [0.0]
    for a, b in zip(fine, fine[1:]):
        length.append(length[-1] + math.dist(a, b))
    out, k = [], 0
    for i in range(POINTS):
        while length[k] < length[-1] * i / (POINTS - 1):
            k += 1
        out.append(fine[k])
    return out


for name, points in (("sequential", SEQUENTIAL), ("diverging", DIVERGING)):
    colours = [srgb(c) for c in equal_steps([lab(p) for p in points])]
    print("static const uint8_t %s[POINTS][3] = {" % name)
    for i in range(0, POINTS, 8):
        print("    " + ", ".join("{%d, %d, %d}" % c[0] for c in colours[i:i + 8]) + ",")
    print("}; /* linear light from %.3f to %.3f */" % (min(c[1] for c in colours), max(c[2] for c in colours)))
