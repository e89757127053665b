#include "cuts.h"
#include "clones.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ZERO 1.0000000180025095e-35 /* (double)1e-35f: LightGBM takes anything nearer to 0 for 0 */

/* The range of levels; one below 0 leaves all undecided. */
static inline tw_range range_of(int32_t low, int32_t high)
{
    return low < 0 ? (tw_range){0, (uint32_t)TW_UNDECIDED << 22} : (tw_range){(uint32_t)low << 22, (uint32_t)high << 22};
}

static int32_t n_values(const tw_column *column)
{
    return column->classes ? column->classes->n_classes : 1;
}

tw_cuts *tw_cuts_new(const tw_forest *f, tw_column *columns)
{
    tw_cuts *c = calloc(1, sizeof *c);
    const size_t features = f->n_features;
    size_t values = 0;
    if (!c)
        return NULL;
    for (size_t i = 0; i < features; i++)
        values += n_values(&columns[i]);
    *c = (tw_cuts){f, columns, malloc(features * sizeof *c->of_class), malloc((features + 1) * sizeof *c->whole),
                   malloc((features + 1) * sizeof *c->range),
                   aligned_alloc(64, features * TW_TAKEN * sizeof *c->level), NULL, 0, 0};
    int16_t *level = malloc(values * sizeof *level);
    if (!c->of_class || !c->whole || !c->range || !c->level || !level) {
        free(level);
        free(c->of_class), c->of_class = NULL;
        tw_cuts_free(c);
        return NULL;
    }
    for (size_t i = 0; i < features; i++) {
        c->of_class[i] = level;
        level += n_values(&columns[i]);
    }
    c->whole[features] = c->range[features] = range_of(-1, 0);
    return c;
}

void tw_cuts_free(tw_cuts *c)
{
    if (c) {
        free(c->of_class ? c->of_class[0] : NULL);
        free(c->of_class);
        free(c->whole);
        free(c->range);
        free(c->level);
        free(c);
    }
}

TW_CLONES void tw_cuts_find(tw_cuts *c, int32_t feature)
{
    const tw_column *column = &c->columns[feature];
    const int32_t n = n_values(column), may_miss = c->forest->levels[feature].may_miss;
    int16_t *level = c->of_class[feature];
    int32_t low = INT16_MAX, high = -1;
    for (int32_t i = 0; i < n; i++) {
        const double x = column->value[i];
        const int32_t found = may_miss || isnan(x) ? -1 : tw_level_of(c->forest, feature, x);
        level[i] = (int16_t)found;
        low = found < low ? found : low;
        high = found > high ? found : high;
    }
    c->whole[feature] = range_of(low, high);
}

void tw_cuts_take_all(tw_cuts *c)
{
    memcpy(c->range, c->whole, c->forest->n_features * sizeof *c->range);
    c->count = 0;
}

TW_CLONES void tw_cuts_take(tw_cuts *c, const int32_t *kernels, int32_t count)
{
    c->kernels = kernels, c->count = count, c->rows = (count + TW_ROW - 1) / TW_ROW;
    for (int32_t i = 0; i < c->forest->n_features; i++) {
        const tw_classes *classes = c->columns[i].classes;
        const int16_t *of_class = c->of_class[i];
        int16_t *level = c->level + (size_t)i * TW_TAKEN;
        c->range[i] = c->whole[i];
        if (!classes || c->range[i].low == c->range[i].high)
            continue;
        for (int32_t k = 0; k < count; k++)
            level[k] = of_class[classes->of_kernel[kernels[k]]];
        for (int32_t k = count; k < c->rows * TW_ROW; k++)
            level[k] = level[0];
        int16_t low = level[0], high = level[0];
        for (int32_t k = 0; k < c->rows * TW_ROW; k++) {
            low = level[k] < low ? level[k] : low;
            high = level[k] > high ? level[k] : high;
        }
        c->range[i] = range_of(low, high);
    }
}

static int goes_left(double x, double threshold, int missing)
{
    int kind = missing & 3;
    if (isnan(x) && kind != TW_MISSING_NAN)
        x = 0.0;
    if ((kind == TW_MISSING_NAN && isnan(x)) || (kind == TW_MISSING_ZERO && fabs(x) <= ZERO))
        return missing >> 2;
    return x <= threshold;
}

void tw_cuts_ask(const tw_cuts *c, int32_t at, tw_set *sent)
{
    const tw_forest *f = c->forest;
    const tw_node node = f->node[at];
    const tw_column *column = &c->columns[tw_node_feature(node)];
    const double threshold = f->thresholds[f->levels[tw_node_feature(node)].first + tw_node_level(node)];
    *sent = (tw_set){0};
    for (int32_t i = 0; i < c->count; i++) {
        const double x = column->value[column->classes ? column->classes->of_kernel[c->kernels[i]] : 0];
        (*sent)[i % TW_ROW] |= (uint16_t)(goes_left(x, threshold, f->missing[at]) << i / TW_ROW);
    }
}
