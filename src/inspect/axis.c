/* axis.c - see axis.h. */
#include "inspect/axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double round_steps[] = {1, 2, 5, 10};

/* Number with this many digits after the point, "-0" never. */
static void write_number(char text[EXF_TICK_TEXT], double value, int digits)
{
    snprintf(text, EXF_TICK_TEXT, "%.*f", digits, value);
    if (text[0] == '-' && strspn(text + 1, "0.") == strlen(text + 1)) memmove(text, text + 1, strlen(text));
}

/* The least round step, at least `least`, of which at most max multiples lie in [low, high]. */
static double round_step(double low, double high, int max, double least)
{
    int power = (int)floor(log10((high - low) / max));
    for (;; power++)
        for (int i = 0; i < 3; i++) {
            double step = round_steps[i] * pow(10, power);
            if (step >= least && floor(high / step + 1e-9) - ceil(low / step - 1e-9) + 1 <= max) return step;
        }
}

/* Digits after the point that tell multiples of a step apart. */
static int digits_of(double step)
{
    int digits = 0;
    while (digits < 9 && fabs(step * pow(10, digits) - rint(step * pow(10, digits))) > 1e-6) digits++;
    return digits;
}

static void add_multiple(exf_ticks *t, double times, double step, int digits)
{
    t->at[t->n] = times * step;
    write_number(t->text[t->n], t->at[t->n], digits);
    t->n++;
}

static void add_multiples(exf_ticks *t, double low, double high, double step)
{
    /* the epsilon keeps an end that is a round number itself */
    double first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
    for (int digits = digits_of(step); t->n < EXF_TICKS_MAX && first + t->n <= last;)
        add_multiple(t, first + t->n, step, digits);
}

/* The first and the last multiple of a power of ten, where no step has two that fit. */
static void add_two(exf_ticks *t, double low, double high)
{
    double step = pow(10, floor(log10(high - low))), first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
    t->n = 0;
    if (first <= last) add_multiple(t, first, step, digits_of(step));
    if (first < last) add_multiple(t, last, step, digits_of(step));
}

/* Ticks at the first n of 1, 2, 5 times every power-th power of ten; returns 0 if there are more than max. */
static int add_powers(exf_ticks *t, double low, double high, int n, int every, int max)
{
    t->n = 0;
    for (int power = (int)floor(log10(low)); power <= (int)ceil(log10(high)); power++)
        for (int i = 0; i < n; i++) {
            double value = round_steps[i] * pow(10, power);
            if (power % every || value < low * (1 - 1e-9) || value > high * (1 + 1e-9)) continue;
            if (t->n == max) return 0;
            t->at[t->n] = value;
            snprintf(t->text[t->n++], EXF_TICK_TEXT, "%.4g", value);
        }
    return 1;
}

static void add_log_ticks(exf_ticks *t, double low, double high, int max)
{
    if (add_powers(t, low, high, 3, 1, max)) return;
    for (int every = 1; !add_powers(t, low, high, 1, every, max);) every++;
}

void exf_ticks_at(exf_ticks *t, exf_axis_kind kind, double low, double high, int max)
{
    t->n = 0;
    if (!(low < high) || !isfinite(low) || !isfinite(high) || (kind == EXF_AXIS_LOG && low <= 0)) return;
    if (max < 2) max = 2;
    if (max > EXF_TICKS_MAX) max = EXF_TICKS_MAX;
    if (kind == EXF_AXIS_LOG)
        add_log_ticks(t, low, high, max);
    else
        add_multiples(t, low, high, round_step(low, high, max, kind == EXF_AXIS_WHOLE ? 1 : 0));
}

double exf_ticks_width(const exf_ticks *t, exf_drawing *d, double size)
{
    double widest = 0;
    for (int i = 0; i < t->n; i++) widest = fmax(widest, exf_text_width(d, size, t->text[i]));
    return widest;
}

double exf_axis_share(exf_axis_kind kind, double value, double low, double high)
{
    if (kind == EXF_AXIS_LOG) return value > 0 ? log(value / low) / log(high / low) : -1;
    return (value - low) / (high - low);
}

static int are_apart(const exf_ticks *t, exf_drawing *d, exf_axis_kind kind, double low, double high, double length, double size,
                     int up)
{
    for (int i = 1; i < t->n; i++) {
        double apart = length * (exf_axis_share(kind, t->at[i], low, high) - exf_axis_share(kind, t->at[i - 1], low, high));
        double need = up ? 1.6 * size
                         : (exf_text_width(d, size, t->text[i]) + exf_text_width(d, size, t->text[i - 1])) / 2 + 0.8 * size;
        if (apart < need) return 0;
    }
    return 1;
}

void exf_ticks_fit(exf_ticks *t, exf_drawing *d, exf_axis_kind kind, double low, double high, double length, double size, int up)
{
    for (int max = EXF_TICKS_MAX; max >= 2; max--) {
        exf_ticks_at(t, kind, low, high, max);
        if (t->n > 1 && are_apart(t, d, kind, low, high, length, size, up)) return;
    }
    if (t->n && kind != EXF_AXIS_LOG) add_two(t, low, high);
    if (t->n && !are_apart(t, d, kind, low, high, length, size, up)) t->n = 1; /* the first alone */
}

void exf_axis_round_out(double *low, double *high)
{
    if (!(*low < *high)) return;
    double step = round_step(*low, *high, 11, 0);
    *low = floor(*low / step + 1e-6) * step; /* values are floats */
    *high = ceil(*high / step - 1e-6) * step;
}

/* ---- heading ----------------------------------------------------------------------------------- */

enum { LINE_MOST = 512 };

static const double margin = 8, title_size = 9, note_size = 6.5, leading = 1.35;

/* Bytes of the text that fit into the width, up to a blank or the end; a word that is wider stays whole. */
static size_t bytes_of_line(exf_drawing *d, double width, double size, const char *text)
{
    size_t fits = 0;
    for (size_t at = 0; at == 0 || text[at - 1];) {
        char line[LINE_MOST];
        size_t end = at + strcspn(text + at, " ");
        snprintf(line, sizeof line, "%.*s", (int)end, text);
        if (fits && exf_text_width(d, size, line) > width) break;
        fits = end;
        if (!text[end]) break;
        at = end + 1;
    }
    return fits;
}

/* Moves *y below the lines. */
static void add_lines(exf_drawing *d, double width, double size, exf_ink ink, const char *text, int draw, double *y)
{
    while (text && *text) {
        char line[LINE_MOST];
        size_t n = bytes_of_line(d, width - 2 * margin, size, text);
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        *y += size * leading;
        if (draw) exf_draw_text(d, margin, *y - (leading - 1) * size, EXF_START, size, ink, line);
        text += n + (text[n] == ' ');
    }
}

static double heading(exf_drawing *d, double width, const char *title, const char *note, int draw)
{
    double y = margin * 0.6;
    add_lines(d, width, title_size, EXF_INK_TEXT, title, draw, &y);
    add_lines(d, width, note_size, EXF_INK_SOFT, note, draw, &y);
    return y + 4;
}

double exf_heading_height(exf_drawing *d, double width, const char *title, const char *note)
{
    return heading(d, width, title, note, 0);
}

double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note)
{
    return heading(d, width, title, note, 1);
}
