/* Reader of LightGBM's text models. text.h has the contract. */
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAVES, FEATURE, THRESHOLD, KIND, LEFT, RIGHT, VALUE, LINEAR, KEYS };

static const char *const NAMES[KEYS] = {"num_leaves", "split_feature", "threshold",  "decision_type",
                                        "left_child", "right_child",   "leaf_value", "is_linear"};

enum { MAX_LEAVES = 1 << 20, MAX_DEPTH = 4096 }; /* as in model/_trees.py */

void tw_text_free(tw_text_trees *t)
{
    free(t->roots);
    free(t->feature);
    free(t->children);
    free(t->threshold);
    free(t->value);
    free(t->missing);
    free(t->default_left);
    *t = (tw_text_trees){0};
}

/* Reserve capacity for a tree of `nodes` nodes; capacities double, so that few elements are copied. Return 0 or -1. */
static int reserve(tw_text_trees *t, int64_t *capacity, int64_t nodes)
{
    if (t->n_nodes + nodes <= *capacity)
        return 0;
    int64_t n = 2 * (t->n_nodes + nodes);
#define GROW(field, count)                                                                                             \
    {                                                                                                                  \
        void *more = realloc(t->field, (count) * sizeof *t->field);                                                    \
        if (!more)                                                                                                     \
            return -1;                                                                                                 \
        t->field = more;                                                                                               \
    }
    GROW(feature, n)
    GROW(children, 2 * n)
    GROW(threshold, n)
    GROW(value, n)
    GROW(missing, n)
    GROW(default_left, n)
#undef GROW
    *capacity = n;
    return 0;
}

/* Read `count` integers of up to ten digits, separated by single spaces and ended by a newline. Return 0 or -1. */
static int integers(const char *text, int64_t count, int64_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        int negative = *text == '-', digits = 0;
        int64_t x = 0;
        for (text += negative; *text >= '0' && *text <= '9' && digits <= 10; digits++)
            x = 10 * x + (*text++ - '0');
        if (digits < 1 || digits > 10 || *text != (i + 1 < count ? ' ' : '\n'))
            return -1;
        text++;
        out[i] = negative ? -x : x;
    }
    return 0;
}

/* Read `count` finite decimal numbers, separated by single spaces and ended by a newline. Return 0 or -1. */
static int reals(const char *text, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        const char *digits = text + (*text == '-');
        if (*digits < '0' || *digits > '9' || digits[1] == 'x' || digits[1] == 'X')
            return -1; /* excludes inf, nan and hexadecimal numbers, which strtod reads */
        char *end;
        out[i] = strtod(text, &end);
        if (end == text || !isfinite(out[i]) || *end != (i + 1 < count ? ' ' : '\n'))
            return -1;
        text = end + 1;
    }
    return 0;
}

/* Append one tree to `t`. `at` has the value of each key, NULL where the tree lacks it; `scratch` is a buffer that
 * is grown as needed and freed by the caller. Return 0 or -1. */
static int read_tree(const char *const *at, int32_t n_features, tw_text_trees *t, int64_t *capacity, int64_t **scratch)
{
    int64_t leaves, linear = 0;
    if (!at[LEAVES] || integers(at[LEAVES], 1, &leaves) || leaves < 1 || leaves > MAX_LEAVES ||
        (at[LINEAR] && (integers(at[LINEAR], 1, &linear) || linear)))
        return -1;
    const int64_t splits = leaves - 1, nodes = splits + leaves, base = t->n_nodes;
    for (int key = FEATURE; key <= RIGHT; key++)
        if (splits ? !at[key] : at[key] && *at[key] != '\n')
            return -1;
    int64_t *more = realloc(*scratch, (3 * splits + 2 * nodes) * sizeof **scratch);
    if (!more || reserve(t, capacity, nodes))
        return -1;
    *scratch = more;
    int64_t *kind = more, *left = more + splits, *right = left + splits, *depth = right + splits,
            *n_parents = depth + nodes;
    int64_t *feature = t->feature + base, *children = t->children + 2 * base;
    double *threshold = t->threshold + base, *value = t->value + base;
    if (!at[VALUE] || reals(at[VALUE], leaves, value + splits))
        return -1;
    if (splits &&
        (integers(at[FEATURE], splits, feature) || reals(at[THRESHOLD], splits, threshold) ||
         integers(at[KIND], splits, kind) || integers(at[LEFT], splits, left) || integers(at[RIGHT], splits, right)))
        return -1;
    memset(depth, 0, 2 * nodes * sizeof *depth);
    for (int64_t i = 0; i < splits; i++) {
        int64_t child[2] = {right[i] < 0 ? splits + ~right[i] : right[i], left[i] < 0 ? splits + ~left[i] : left[i]};
        if (kind[i] < 0 || kind[i] > 11 || kind[i] & 1 || feature[i] < 0 || feature[i] >= n_features)
            return -1; /* bit 0: categorical; bits 2 and 3: nothing, zero or NaN counts as missing */
        for (int side = 0; side < 2; side++) { /* a child comes after its only parent */
            if (child[side] <= i || child[side] >= nodes || n_parents[child[side]]++ || depth[i] == MAX_DEPTH)
                return -1;
            depth[child[side]] = depth[i] + 1;
            children[2 * i + side] = base + child[side];
        }
        t->missing[base + i] = (int8_t)(kind[i] >> 2);
        t->default_left[base + i] = kind[i] >> 1 & 1;
        value[i] = 0.0;
    }
    for (int64_t i = splits; i < nodes; i++) {
        feature[i] = 0, threshold[i] = 0.0, t->missing[base + i] = 0, t->default_left[base + i] = 0;
        children[2 * i] = children[2 * i + 1] = base + i;
        t->depth = depth[i] > t->depth ? (int32_t)depth[i] : t->depth;
    }
    t->n_nodes += nodes;
    return 0;
}

int tw_text_read(const char *text, size_t length, int32_t n_features, tw_text_trees *t)
{
    const char *end = text + length, *at[KEYS] = {0};
    int64_t node_capacity = 0, *scratch = NULL;
    int32_t tree_capacity = 0;
    int inside = 0, done = 0, failed = 0;
    *t = (tw_text_trees){0};
    for (const signed char *c = (const signed char *)text; c < (const signed char *)end;
         c++) /* control and non-ASCII characters */
        failed |= (*c < ' ') & (*c != '\n');
    while (text < end && !done && !failed) {
        const char *line = text, *stop = memchr(line, '\n', end - line);
        done = !strncmp(line, "end of trees", 12);
        int begins = stop && stop - line > 5 && !memcmp(line, "Tree=", 5);
        for (const char *c = line + 5; begins && c < stop; c++)
            begins = *c >= '0' && *c <= '9';
        if (begins || done) {
            failed = inside ? read_tree(at, n_features, t, &node_capacity, &scratch) : 0;
            for (int key = 0; key < KEYS; key++)
                at[key] = NULL;
            if (failed || done)
                break;
            inside = 1;
            if (t->n_trees == tree_capacity) {
                int64_t *more = realloc(t->roots, (2 * tree_capacity + 64) * sizeof *more);
                if (!more) {
                    failed = -1;
                    break;
                }
                t->roots = more, tree_capacity = 2 * tree_capacity + 64;
            }
            t->roots[t->n_trees++] = t->n_nodes;
        } else if (stop && inside) {
            const char *equals = memchr(line, '=', stop - line);
            for (int key = 0; equals && key < KEYS; key++)
                if (strlen(NAMES[key]) == (size_t)(equals - line) && !memcmp(line, NAMES[key], equals - line)) {
                    failed = at[key] ? -1 : 0; /* a repeated key is refused */
                    at[key] = equals + 1;
                }
        } else
            failed = -1;
        text = stop ? stop + 1 : end;
    }
    free(scratch);
    if (failed || !done || !t->n_trees) {
        tw_text_free(t);
        return -1;
    }
    return 0;
}
