/* colour.c - see colour.h. */
#include "inspect/colour.h"

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
