#include "forest.h"
#include "clones.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 64 /* trees that are walked side by side: one waits for memory while others go on */
#define UNDECIDED INT16_MAX /* no level is that high */
#define ZERO 1.0000000180025095e-35 /* (double)1e-35f: LightGBM takes anything nearer to 0 for 0 */

static void sets_free(tw_sets *s)
{
    free(s->tree);
    free(s->at);
    free(s->value);
    free(s->mask);
    *s = (tw_sets){0};
}

void tw_walk_free(tw_walk *w)
{
    free(w->level);
    free(w->range);
    free(w->scratch);
    free(w->moving);
    sets_free(&w->open);
    sets_free(&w->leaves);
    *w = (tw_walk){0};
}

static int reserve(tw_sets *s, int64_t count)
{
    if (count <= s->room)
        return 0;
    int64_t room = 2 * count;
    int32_t *tree = realloc(s->tree, room * sizeof *tree);
    s->tree = tree ? tree : s->tree;
    int32_t *at = realloc(s->at, room * sizeof *at);
    s->at = at ? at : s->at;
    double *value = realloc(s->value, room * sizeof *value);
    s->value = value ? value : s->value;
    uint64_t *mask = realloc(s->mask, room * s->words * sizeof *mask);
    s->mask = mask ? mask : s->mask;
    if (!tree || !at || !value || !mask || room > INT32_MAX)
        return -1;
    s->room = (int32_t)room;
    return 0;
}

static int prepare(tw_walk *w, int32_t n_features, int32_t n_rows, int32_t n_values, int32_t words)
{
    if ((int64_t)n_features * n_rows > (int64_t)w->n_features * w->n_rows || n_features > w->n_features) {
        free(w->level);
        free(w->range);
        w->level = malloc((size_t)n_features * n_rows * sizeof *w->level);
        w->range = malloc((size_t)(n_features + 1) * 2 * sizeof *w->range);
        w->n_features = n_features, w->n_rows = n_rows;
    }
    if (n_values > w->n_values) {
        free(w->scratch);
        w->scratch = malloc(n_values * sizeof *w->scratch);
        w->n_values = n_values;
    }
    if (w->open.words != words) {
        sets_free(&w->open);
        sets_free(&w->leaves);
        w->open.words = w->leaves.words = words;
    }
    w->open.count = w->leaves.count = 0;
    if (!w->level || !w->range || !w->scratch) {
        tw_walk_free(w);
        return -1;
    }
    return 0;
}

/* Levels of many values at once: searches side by side wait less than one after another. */
TW_CLONES static void find_levels(const double *thresholds, int32_t depth, const double *x, int32_t n, int16_t *level)
{
    memset(level, 0, n * sizeof *level);
    for (int32_t half = 1 << depth >> 1; half; half >>= 1)
        for (int32_t i = 0; i < n; i++)
            level[i] += thresholds[level[i] + half - 1] < x[i] ? (int16_t)half : 0;
}

static int any_nan(const double *x, int32_t n)
{
    int found = 0;
    for (int32_t i = 0; i < n; i++)
        found |= isnan(x[i]);
    return found;
}

/* The levels of a feature among the kernels in play, and their range. Where a value may count as missing, levels tell
 * nothing: the range then decides nowhere. */
static void look(const tw_forest *f, int32_t feature, const tw_column *c, const int32_t *rows, int32_t n, tw_walk *w,
                 int32_t stride)
{
    const tw_levels *levels = &f->levels[feature];
    int16_t *level = w->level + (size_t)feature * stride, low = INT16_MAX, high = 0;
    if (levels->may_miss || any_nan(c->value, c->index ? c->n_values : 1)) {
        low = 0, high = UNDECIDED;
    } else if (!c->index) {
        find_levels(f->thresholds + levels->first, levels->depth, c->value, 1, &low);
        high = low;
    } else {
        find_levels(f->thresholds + levels->first, levels->depth, c->value, c->n_values, w->scratch);
        for (int32_t i = 0; i < n; i++)
            level[i] = w->scratch[c->index[rows[i]]];
        for (int32_t i = 0; i < n; i++) {
            low = level[i] < low ? level[i] : low;
            high = level[i] > high ? level[i] : high;
        }
        for (int32_t i = n; i < stride; i++)
            level[i] = high;
    }
    w->range[2 * feature] = low;
    w->range[2 * feature + 1] = high;
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

/* Which bits go left, by their levels. */
static inline void part(const int16_t *level, int16_t threshold, int32_t words, uint64_t *left)
{
    for (int32_t w = 0; w < words; w++, level += 64) {
        uint64_t mask = 0;
#ifdef __SSE2__
        const __m128i t = _mm_set1_epi16(threshold);
        for (int32_t i = 0; i < 4; i++) {
            __m128i low = _mm_cmpgt_epi16(_mm_loadu_si128((const __m128i *)(level + 16 * i)), t);
            __m128i high = _mm_cmpgt_epi16(_mm_loadu_si128((const __m128i *)(level + 16 * i + 8)), t);
            mask |= (uint64_t)(uint16_t)~_mm_movemask_epi8(_mm_packs_epi16(low, high)) << (16 * i);
        }
#else
        for (int32_t i = 0; i < 64; i++)
            mask |= (uint64_t)(level[i] <= threshold) << i;
#endif
        left[w] = mask;
    }
}

/* The same where values may be missing. */
static void part_carefully(const tw_forest *f, int32_t at, const tw_column *c, const int32_t *rows, int32_t n,
                           int32_t words, uint64_t *left)
{
    double threshold = f->thresholds[f->levels[f->node[at] & 0xff].first + (f->node[at] >> 8 & 0x3ff)];
    memset(left, 0, words * sizeof *left);
    for (int32_t i = 0; i < n; i++)
        if (goes_left(c->value[c->index ? c->index[rows[i]] : 0], threshold, f->missing[at]))
            left[i >> 6] |= 1ull << (i & 63);
}

/* Take each set on while its range decides: all of them a step, then those that moved another. No branch depends on
 * where one goes, so many steps are in flight at once. */
static void advance(const tw_forest *f, const int16_t *ranges, int32_t *at, int32_t count, int32_t *moving)
{
    const tw_node *nodes = f->node;
    for (int32_t i = 0; i < count; i++)
        moving[i] = i;
    while (count) {
        int32_t left = 0;
        for (int32_t j = 0; j < count; j++) {
            int32_t i = moving[j], here = at[i];
            tw_node node = nodes[here];
            uint32_t range, above, other = node >> 19;
            memcpy(&range, ranges + 2 * (node & 0xff), sizeof range);
            /* two comparisons in one: bits 15 and 31 stay where a level is not above the node's */
            above = ((node >> 8 & 0x3ff) * 0x10001u | 0x80008000u) - range;
            uint32_t step = (int32_t)(above ^ node << 13) < 0 ? other : 1;
            step &= ~(uint32_t)((int32_t)(above ^ above << 16) >> 31);
            __builtin_prefetch(nodes + here + step);
            at[i] = here + (int32_t)step;
            moving[left] = i;
            left += step != 0;
        }
        count = left;
    }
}

/* Move the sets at a leaf to the leaves, part those that a range did not decide for. Results are written for every set
 * and kept where they hold: a branch that depends on a set would be guessed wrong as often as not. */
static inline int settle(const tw_forest *f, const tw_column *columns, const int32_t *rows, int32_t n, tw_walk *w,
                         int32_t words, int32_t stride)
{
    tw_sets *open = &w->open, *leaves = &w->leaves;
    if (reserve(leaves, (int64_t)leaves->count + open->count + 1))
        return -1;
    int32_t *open_tree = open->tree, *open_at = open->at, *leaf_tree = leaves->tree;
    uint64_t *open_mask = open->mask, *leaf_mask = leaves->mask;
    double *leaf_value = leaves->value;
    const int32_t count = open->count, n_features = f->n_features;
    int32_t kept = 0, found = leaves->count, splits = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t at = open_at[i], is_leaf = (int32_t)(f->node[at] & 0xff) == n_features;
        leaf_tree[found] = open_tree[i];
        memcpy(&leaf_value[found], f->node + at + 1, sizeof *leaf_value);
        for (int32_t j = 0; j < words; j++)
            leaf_mask[(size_t)found * words + j] = open_mask[(size_t)i * words + j];
        w->moving[splits] = i;
        found += is_leaf;
        splits += !is_leaf;
    }
    int32_t added = count;
    for (; kept < splits; kept++) {
        const int32_t i = w->moving[kept], tree = open_tree[i], at = open_at[i];
        const tw_node node = f->node[at];
        const int32_t feature = node & 0xff, level = node >> 8 & 0x3ff, follows = node >> 18 & 1, step = node >> 19;
        uint64_t left[words], any_left = 0, any_right = 0;
        if (w->range[2 * feature + 1] != UNDECIDED)
            part(w->level + (size_t)feature * stride, (int16_t)level, words, left);
        else
            part_carefully(f, at, &columns[feature], rows, n, words, left);
        for (int32_t j = 0; j < words; j++) {
            const uint64_t mask = open_mask[(size_t)i * words + j];
            any_left |= left[j] &= mask;
            any_right |= open_mask[(size_t)added * words + j] = mask & ~left[j];
        }
        const uint64_t all_right = any_left ? 0 : ~0ull;
        for (int32_t j = 0; j < words; j++)
            open_mask[(size_t)kept * words + j] = left[j] | (open_mask[(size_t)added * words + j] & all_right);
        open_tree[kept] = open_tree[added] = tree;
        open_at[kept] = at + ((any_left != 0) == follows ? 1 : step);
        open_at[added] = at + (follows ? step : 1);
        added += (any_left != 0) & (any_right != 0);
    }
    leaves->count = found;
    const int32_t more = added - count;
    memmove(open_tree + kept, open_tree + count, more * sizeof *open_tree);
    memmove(open_at + kept, open_at + count, more * sizeof *open_at);
    memmove(open_mask + (size_t)kept * words, open_mask + (size_t)count * words, (size_t)more * words * sizeof *open_mask);
    open->count = kept + more;
    return 0;
}

/* Room for all sets of a step, each of which may part. */
static int reserve_open(tw_walk *w, int64_t count)
{
    int32_t before = w->open.room;
    if (reserve(&w->open, 2 * count + 1))
        return -1;
    if (w->open.room != before || !w->moving) {
        free(w->moving);
        w->moving = malloc(w->open.room * sizeof *w->moving);
    }
    return w->moving ? 0 : -1;
}

int tw_forest_walk(const tw_forest *f, const tw_column *columns, const int32_t *rows, int32_t n, tw_walk *w)
{
    const int32_t words = (n + 63) / 64, stride = 64 * words;
    int32_t most = 1;
    for (int32_t i = 0; i < f->n_features; i++)
        most = columns[i].n_values > most ? columns[i].n_values : most;
    if (prepare(w, f->n_features, stride, most, words))
        return -1;
    for (int32_t i = 0; i < f->n_features; i++)
        look(f, i, &columns[i], rows, n, w, stride);
    w->range[2 * f->n_features] = 0, w->range[2 * f->n_features + 1] = UNDECIDED;
    tw_sets *open = &w->open;
    for (int32_t first = 0; first < f->n_trees; first += BLOCK) {
        int32_t count = f->n_trees - first < BLOCK ? f->n_trees - first : BLOCK;
        if (reserve_open(w, count))
            return -1;
        for (int32_t i = 0; i < count; i++) {
            open->tree[i] = first + i, open->at[i] = f->roots[first + i];
            for (int32_t j = 0; j < words; j++)
                open->mask[(size_t)i * words + j] = j < words - 1 || !(n & 63) ? ~0ull : (1ull << (n & 63)) - 1;
        }
        open->count = count;
        while (open->count) {
            advance(f, w->range, open->at, open->count, w->moving);
            /* the same code for few words, so that loops over them unroll */
            if (reserve_open(w, open->count) || (words == 1   ? settle(f, columns, rows, n, w, 1, stride)
                                                 : words == 2 ? settle(f, columns, rows, n, w, 2, stride)
                                                              : settle(f, columns, rows, n, w, words, stride)))
                return -1;
        }
    }
    return 0;
}
