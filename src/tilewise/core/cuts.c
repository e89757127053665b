#include "cuts.h"
#include "clones.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ZERO 1.0000000180025095e-35 /* (double)1e-35f: LightGBM takes anything nearer to 0 for 0 */

static tw_range range_of(int32_t low, int32_t high)
{
    return (tw_range){(uint32_t)low << 22, (uint32_t)high << 22};
}

tw_cuts *tw_cuts_new(const tw_forest *f, tw_column *columns, int32_t words)
{
    tw_cuts *c = calloc(1, sizeof *c);
    size_t classes = 0, most = 1, features = f->n_features;
    for (size_t i = 0; i < features; i++) {
        const size_t n = columns[i].classes ? columns[i].classes->n_classes : 0;
        classes += n, most = n > most ? n : most;
    }
    if (!c)
        return NULL;
    *c = (tw_cuts){f, columns, words, calloc(features, sizeof *c->of), malloc((features + 1) * sizeof *c->range),
                   malloc(words * sizeof *c->active), 0, malloc(words * sizeof *c->asked), malloc(most * sizeof *c->list), malloc(most * sizeof *c->levels), NULL};
    c->room = malloc((classes + features) * words * sizeof(uint64_t) +
                     (2 * classes + f->n_thresholds + features) * sizeof(uint16_t));
    if (!c->of || !c->range || !c->active || !c->asked || !c->list || !c->levels || !c->room) {
        tw_cuts_free(c);
        return NULL;
    }
    uint64_t *left = c->room;
    uint16_t *rest = (uint16_t *)(left + (classes + features) * words);
    for (size_t i = 0; i < features; i++) {
        const size_t n = columns[i].classes ? columns[i].classes->n_classes : 0;
        c->of[i] = (tw_cut){rest, left, (int16_t *)rest + f->levels[i].count + 1, rest + f->levels[i].count + 1 + n, 0, 0, 0};
        left += (n + 1) * words;
        rest += f->levels[i].count + 1 + 2 * n;
    }
    c->range[features] = range_of(0, TW_UNDECIDED);
    return c;
}

void tw_cuts_free(tw_cuts *c)
{
    if (c) {
        free(c->of);
        free(c->range);
        free(c->active);
        free(c->asked);
        free(c->list);
        free(c->levels);
        free(c->room);
        free(c);
    }
}

/* List the classes that have a kernel in play into `found`; how many. */
static inline int32_t find_classes(const tw_classes *classes, const uint64_t *alive, int32_t words, uint16_t *found)
{
    int32_t n = 0;
    for (int32_t i = 0; i < classes->n_classes; i++) {
        uint64_t any = 0;
        for (int32_t w = 0; w < words; w++)
            any |= classes->masks[(size_t)i * words + w] & alive[w];
        found[n] = (uint16_t)i;
        n += any != 0;
    }
    return n;
}

TW_CLONES void tw_cuts_find(tw_cuts *c, int32_t feature, const uint64_t *alive)
{
    const tw_levels *levels = &c->forest->levels[feature];
    const tw_column *column = &c->columns[feature];
    const tw_classes *classes = column->classes;
    const int32_t words = c->words;
    tw_cut *cut = &c->of[feature];
    uint16_t *list = c->list, *below = cut->below;
    int32_t n = classes ? find_classes(classes, alive, words, list) : 0, nan = classes ? 0 : isnan(*column->value);
    for (int32_t i = 0; i < n; i++)
        nan |= isnan(column->value[list[i]]);
    if (levels->may_miss || nan) {
        c->range[feature] = range_of(0, TW_UNDECIDED);
        return;
    }
    if (!classes) {
        int32_t level = tw_level_of(c->forest, feature, *column->value);
        c->range[feature] = range_of(level, level);
        return;
    }
    int16_t *level = c->levels;
    memset(below, 0, (levels->count + 1) * sizeof *below);
    for (int32_t i = 0; i < n; i++) {
        level[i] = (int16_t)tw_level_of(c->forest, feature, column->value[list[i]]);
        below[level[i]]++;
    }
    for (int32_t i = 1; i <= levels->count; i++)
        below[i] += below[i - 1];
    for (int32_t w = 0; w < words; w++)
        cut->left[w] = 0;
    for (int32_t i = 0; i < n; i++) {
        const uint64_t *mask = classes->masks + (size_t)list[i] * words;
        const uint16_t place = --below[level[i]];
        cut->level[place] = level[i];
        cut->place[list[i]] = place;
        for (int32_t w = 0; w < words; w++)
            cut->left[(size_t)(place + 1) * words + w] = mask[w];
    }
    for (int32_t i = 0; i < n * words; i++)
        cut->left[words + i] |= cut->left[i];
    cut->n = n, cut->low = 0, cut->high = n - 1;
    c->range[feature] = range_of(cut->level[0], cut->level[n - 1]);
}

static inline uint64_t any_of(const uint64_t *set, const uint64_t *other, int32_t words)
{
    uint64_t found = 0;
    for (int32_t w = 0; w < words; w++)
        found |= set[w] & other[w];
    return found;
}

static inline uint64_t any_but(const uint64_t *set, const uint64_t *other, int32_t words)
{
    uint64_t found = 0;
    for (int32_t w = 0; w < words; w++)
        found |= set[w] & ~other[w];
    return found;
}

void tw_cuts_widen(tw_cuts *c)
{
    for (int32_t i = 0; i < c->forest->n_features; i++)
        c->of[i].low = 0, c->of[i].high = c->of[i].n - 1;
}

static void find_active(tw_cuts *c, const uint64_t *set)
{
    c->n_active = 0;
    for (int32_t w = 0; w < c->words; w++) {
        c->active[c->n_active] = w;
        c->n_active += set[w] != 0;
    }
}

TW_CLONES void tw_cuts_narrow(tw_cuts *c, const uint64_t *set)
{
    const int32_t words = c->words;
    find_active(c, set);
    for (int32_t i = 0; i < c->forest->n_features; i++) {
        tw_cut *cut = &c->of[i];
        if (!c->columns[i].classes || tw_cuts_unsure(c, i))
            continue;
        while (!any_of(set, cut->left + (size_t)(cut->low + 1) * words, words))
            cut->low++;
        while (!any_but(set, cut->left + (size_t)cut->high * words, words))
            cut->high--;
        c->range[i] = range_of(cut->level[cut->low], cut->level[cut->high]);
    }
}

TW_CLONES void tw_cuts_focus(tw_cuts *c, const uint64_t *set)
{
    find_active(c, set);
    for (int32_t i = 0; i < c->forest->n_features; i++) {
        const tw_cut *cut = &c->of[i];
        const tw_classes *classes = c->columns[i].classes;
        int32_t low = cut->n, high = 0;
        if (!classes || tw_cuts_unsure(c, i))
            continue;
        for (int32_t j = 0; j < c->n_active; j++)
            for (uint64_t mask = set[c->active[j]]; mask; mask &= mask - 1) {
                const int32_t place = cut->place[classes->of_kernel[64 * c->active[j] + __builtin_ctzll(mask)]];
                low = place < low ? place : low;
                high = place > high ? place : high;
            }
        c->range[i] = range_of(cut->level[low], cut->level[high]);
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

const uint64_t *tw_cuts_ask(const tw_cuts *c, int32_t at)
{
    uint64_t *left = c->asked;
    const tw_forest *f = c->forest;
    const tw_node node = f->node[at];
    const tw_column *column = &c->columns[tw_node_feature(node)];
    const double threshold = f->thresholds[f->levels[tw_node_feature(node)].first + tw_node_level(node)];
    if (!column->classes) {
        memset(left, goes_left(*column->value, threshold, f->missing[at]) ? 255 : 0, c->words * sizeof *left);
        return left;
    }
    memset(left, 0, c->words * sizeof *left);
    for (int32_t i = 0; i < column->classes->n_classes; i++)
        if (goes_left(column->value[i], threshold, f->missing[at]))
            for (int32_t w = 0; w < c->words; w++)
                left[w] |= column->classes->masks[(size_t)i * c->words + w];
    return left;
}
