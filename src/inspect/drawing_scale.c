/* drawing_scale.c - how numbers become colours and places: two colour maps, and round numbers along an axis; see drawing.h. */
#include "inspect/drawing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- colours ----------------------------------------------------------------------------------- */

enum { POINTS = EXF_COLOUR_POINTS };

static const uint8_t sequential[POINTS][3] = {
    {24, 13, 60},    {28, 19, 71},    {31, 26, 82},    {33, 32, 94},    {36, 39, 105},   {38, 47, 116},   {39, 55, 126},
    {39, 65, 133},   {38, 75, 138},   {35, 84, 142},   {30, 94, 144},   {25, 103, 146},  {19, 112, 147},  {13, 122, 148},
    {11, 131, 148},  {12, 139, 148},  {16, 148, 147},  {23, 157, 145},  {33, 165, 142},  {46, 173, 139},  {61, 181, 135},
    {79, 189, 132},  {98, 195, 127},  {118, 201, 120}, {137, 207, 113}, {156, 212, 106}, {174, 217, 100}, {192, 222, 97},
    {208, 228, 103}, {221, 233, 119}, {233, 238, 138}, {243, 243, 157}, {254, 247, 176},
};

static const uint8_t diverging[POINTS][3] = {
    {8, 51, 108},    {13, 63, 122},   {17, 75, 136},   {23, 88, 150},   {31, 101, 164},  {41, 114, 176},  {55, 127, 187},
    {71, 140, 195},  {88, 153, 203},  {106, 165, 209}, {124, 178, 216}, {143, 190, 222}, {161, 203, 229}, {180, 215, 236},
    {200, 227, 243}, {221, 238, 247}, {244, 243, 237}, {245, 229, 210}, {241, 214, 186}, {235, 199, 164}, {229, 184, 142},
    {223, 169, 122}, {217, 153, 103}, {211, 137, 86},  {204, 120, 71},  {196, 104, 57},  {186, 89, 44},   {173, 75, 33},
    {159, 62, 27},   {143, 52, 23},   {127, 42, 20},   {111, 33, 19},   {96, 24, 16},
};

void exf_colour_at(exf_colour_map map, int i, int n, uint8_t rgb[3])
{
    const uint8_t(*points)[3] = map == EXF_MAP_DIVERGING ? diverging : sequential;
    int at = i * (POINTS - 1), k = at / (n - 1), part = at % (n - 1);
    const uint8_t *a = points[k], *b = points[k + 1 < POINTS ? k + 1 : k];
    for (int channel = 0; channel < 3; channel++)
        rgb[channel] = (uint8_t)((a[channel] * (n - 1 - part) + b[channel] * part + (n - 1) / 2) / (n - 1));
}

exf_ink exf_colour_of(exf_colour_map map, double value, double low, double high)
{
    uint8_t rgb[3];
    double t = high > low ? (value - low) / (high - low) : 0.5;
    exf_colour_at(map, !(t > 0) ? 0 : t > 1 ? EXF_COLOURS - 1 : (int)(t * (EXF_COLOURS - 1) + 0.5), EXF_COLOURS, rgb);
    return (exf_ink)rgb[0] << 16 | (exf_ink)rgb[1] << 8 | rgb[2];
}

/* ---- axes -------------------------------------------------------------------------------------- */

static const double round_steps[] = {1, 2, 5, 10};

/* Returns the least round step, at least `least`, that has at most max multiples in [low, high]. */
static double find_step(double low, double high, int max, double least)
{
    int power = (int)floor(log10((high - low) / max));
    for (;; power++)
        for (int i = 0; i < 3; i++) {
            double step = round_steps[i] * pow(10, power);
            if (step >= least && floor(high / step + 1e-9) - ceil(low / step - 1e-9) + 1 <= max) return step;
        }
}

/* Returns how many digits after the point tell multiples of a step apart. */
static int count_digits(double step)
{
    int digits = 0;
    while (digits < 9 && fabs(step * pow(10, digits) - rint(step * pow(10, digits))) > 1e-6) digits++;
    return digits;
}

/* Adds a multiple of the step, with so many digits after the point. */
static void add_multiple(exf_ticks *t, double times, double step, int digits)
{
    char *text = t->text[t->n];
    t->at[t->n] = times * step;
    snprintf(text, EXF_TICK_TEXT, "%.*f", digits, t->at[t->n++]);
    if (text[0] == '-' && strspn(text + 1, "0.") == strlen(text + 1)) memmove(text, text + 1, strlen(text)); /* never "-0" */
}

/* Adds ticks at the first n of 1, 2, 5 times every `every`-th power of ten; returns 0 if there are more than max. */
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

void exf_ticks_at(exf_ticks *t, exf_axis_kind kind, double low, double high, int max)
{
    t->n = 0;
    if (!(low < high) || !isfinite(low) || !isfinite(high) || (kind == EXF_AXIS_LOG && low <= 0)) return;
    if (max < 2) max = 2;
    if (max > EXF_TICKS_MAX) max = EXF_TICKS_MAX;
    if (kind == EXF_AXIS_LOG) {
        int fits = add_powers(t, low, high, 3, 1, max);
        for (int every = 1; !fits; every++) fits = add_powers(t, low, high, 1, every, max);
        return;
    }
    double step = find_step(low, high, max, kind == EXF_AXIS_WHOLE ? 1 : 0);
    /* the epsilon keeps an end that is a round number itself */
    double first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
    for (int digits = count_digits(step); t->n < EXF_TICKS_MAX && first + t->n <= last;)
        add_multiple(t, first + t->n, step, digits);
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

/* Returns 1 if the numbers of the ticks keep apart on the axis. */
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
    if (t->n && kind != EXF_AXIS_LOG) { /* no step has two that fit: the first and the last multiple of a power of ten */
        double step = pow(10, floor(log10(high - low))), first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
        t->n = 0;
        if (first <= last) add_multiple(t, first, step, count_digits(step));
        if (first < last) add_multiple(t, last, step, count_digits(step));
    }
    if (t->n && !are_apart(t, d, kind, low, high, length, size, up)) t->n = 1; /* the first alone */
}

void exf_axis_round_out(double *low, double *high)
{
    if (!(*low < *high)) return;
    double step = find_step(*low, *high, 11, 0);
    *low = floor(*low / step + 1e-6) * step; /* values are floats */
    *high = ceil(*high / step - 1e-6) * step;
}
