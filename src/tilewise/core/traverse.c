/* Traversal of trees with sets of kernels. traverse.h has the contract. */
#include "traverse.h"
#include "clones.h"

#include <stdlib.h>
#include <string.h>
#ifdef TW_WIDE
#include <immintrin.h>
#endif

#define TREES_AT_ONCE 256 /* trees that are descended side by side, so that loads of several overlap */

enum { PADDING = 16, N_POSITIONS = 4 };

/* Return one of the four lists of positions. */
static tw_positions *positions_of(tw_traversal *tv, int32_t i)
{
    return i == 0 ? &tv->current : i == 1 ? &tv->next : i == 2 ? &tv->undecided : &tv->at_leaf;
}

void tw_traversal_free(tw_traversal *tv)
{
    for (int32_t i = 0; i < N_POSITIONS; i++) {
        free(positions_of(tv, i)->set);
        free(positions_of(tv, i)->at);
    }
    free(tv->leaves.tree);
    free(tv->leaves.value);
    free(tv->leaves.set);
    *tv = (tw_traversal){0};
}

/* Grow a list of numbers to `capacity` plus padding. Return 0, or -1 when out of memory, with the old list kept. */
static int grow(int32_t **numbers, int64_t capacity)
{
    int32_t *grown = realloc(*numbers, (capacity + PADDING) * sizeof *grown);
    *numbers = grown ? grown : *numbers;
    return grown ? 0 : -1;
}

/* Reserve capacity for one step of `count` sets, each of which may split or reach a leaf. Return 0 or -1. */
static int reserve(tw_traversal *tv, int64_t count)
{
    const int64_t capacity = 4 * count, sets = 2 * (tv->leaves.count + 2 * count);
    int failed = 0;
    if (2 * count > tv->capacity) {
        for (int32_t i = 0; i < N_POSITIONS; i++)
            failed |= capacity > INT32_MAX / 4 || grow(&positions_of(tv, i)->set, capacity) ||
                      grow(&positions_of(tv, i)->at, capacity);
        tv->capacity = failed ? tv->capacity : (int32_t)capacity;
    }
    tw_leaf_sets *s = &tv->leaves;
    if (sets / 2 > s->capacity && !failed) {
        double *value = realloc(s->value, sets * sizeof *value);
        s->value = value ? value : s->value;
        uint64_t *set = realloc(s->set, sets * TW_MAX_WORDS * sizeof *set);
        s->set = set ? set : s->set;
        failed = sets > INT32_MAX / TW_MAX_WORDS || !value || !set || grow(&s->tree, sets);
        s->capacity = failed ? s->capacity : (int32_t)sets;
    }
    return failed ? -1 : 0;
}

TW_CLONES int tw_traverse_decided(const tw_thresholds *th, int32_t *at, int32_t count, tw_traversal *tv)
{
    const tw_node *nodes = th->forest->node;
    const tw_range *ranges = th->range;
    if (reserve(tv, count))
        return -1;
    int32_t *moving = tv->current.set;
    for (int32_t i = 0; i < count; i++)
        moving[i] = i;
    while (count) { /* one step of each, then of those that moved, so that loads of many overlap */
        int32_t left = 0;
        for (int32_t next = 0; next < count; next++) {
            const uint32_t i = (uint32_t)moving[next], current = (uint32_t)at[i];
            const tw_node node = nodes[current];
            const tw_range range = ranges[tw_node_feature(node)];
            const uint32_t level = (uint32_t)tw_node_level(node), right = level < range.low;
            const uint32_t decided = right | (level >= range.high);
            const uint32_t step = ((uint32_t)tw_node_offset(node) + right) & -decided;
            __builtin_prefetch(nodes + current + step);
            at[i] = (int32_t)(current + step);
            moving[left] = (int32_t)i;
            left += (int32_t)decided;
        }
        count = left;
    }
    return 0;
}

typedef struct {
    int32_t moved, undecided, at_leaf;
} tally;

/* Classify the current sets: decided sets move to `next`, sets at a leaf go to `at_leaf` with the leaf's number,
 * the others to `undecided`. Each set is written to all three lists, and only the right list's count advances:
 * branches would be mispredicted too often. */
static inline __attribute__((always_inline)) tally classify_each(const tw_thresholds *th, tw_traversal *tv,
                                                                 int32_t count)
{
    const tw_node *nodes = th->forest->node;
    const int32_t n_features = th->forest->n_features;
    const tw_positions current = tv->current, next = tv->next, undecided = tv->undecided, at_leaf = tv->at_leaf;
    tally n = {0};
    for (int32_t i = 0; i < count; i++) {
        const int32_t at = current.at[i], set = current.set[i];
        const tw_node node = nodes[at];
        const int32_t feature = tw_node_feature(node), level = tw_node_level(node), step = tw_node_offset(node);
        const tw_range range = th->range[feature];
        const int32_t right = level < range.low, decided = right | (level >= range.high), leaf = feature == n_features;
        next.set[n.moved] = undecided.set[n.undecided] = at_leaf.set[n.at_leaf] = set;
        next.at[n.moved] = at + step + right;
        undecided.at[n.undecided] = at;
        at_leaf.at[n.at_leaf] = step;
        n.moved += decided;
        n.undecided += !decided & !leaf;
        n.at_leaf += leaf;
    }
    return n;
}

#ifdef TW_WIDE
/* Append the selected lanes to a list of positions. */
static inline __attribute__((always_inline)) TW_WIDE void append(tw_positions to, int32_t *count, __mmask16 which,
                                                                 __m512i set, __m512i at)
{
    _mm512_storeu_si512(to.set + *count, _mm512_maskz_compress_epi32(which, set));
    _mm512_storeu_si512(to.at + *count, _mm512_maskz_compress_epi32(which, at));
    *count += __builtin_popcount(which);
}

/* Classify the current sets, sixteen at a time. */
TW_WIDE static tally classify_sixteen(const tw_thresholds *th, tw_traversal *tv, int32_t count)
{
    const __m512i n_features = _mm512_set1_epi32(th->forest->n_features);
    const tw_positions current = tv->current, next = tv->next, undecided = tv->undecided, at_leaf = tv->at_leaf;
    tally n = {0};
    for (int32_t i = 0; i < count; i += 16) {
        const __mmask16 some = count - i < 16 ? (__mmask16)((1U << (count - i)) - 1) : UINT16_MAX;
        const __m512i at = _mm512_maskz_loadu_epi32(some, current.at + i),
                      set = _mm512_maskz_loadu_epi32(some, current.set + i);
        const __m512i node = _mm512_mask_i32gather_epi32(at, some, at, th->forest->node, 4);
        const __m512i feature = _mm512_and_si512(node, _mm512_set1_epi32(TW_FEATURE_MASK));
        const __m512i step =
            _mm512_and_si512(_mm512_srli_epi32(node, TW_OFFSET_SHIFT), _mm512_set1_epi32(TW_OFFSET_MASK));
        const __m512i level = _mm512_srli_epi32(node, TW_LEVEL_SHIFT);
        const __m512i range = _mm512_mask_i32gather_epi32(at, some, feature, th->range, 4);
        const __m512i low = _mm512_and_si512(range, _mm512_set1_epi32(0xffff)), high = _mm512_srli_epi32(range, 16);
        const __mmask16 right = _mm512_cmplt_epi32_mask(level, low), left = _mm512_cmpge_epi32_mask(level, high);
        const __mmask16 decided = some & (right | left), leaf = some & _mm512_cmpeq_epi32_mask(feature, n_features);
        const __m512i there = _mm512_add_epi32(at, step);
        append(next, &n.moved, decided, set, _mm512_mask_add_epi32(there, right, there, _mm512_set1_epi32(1)));
        append(undecided, &n.undecided, some & ~(decided | leaf), set, at);
        append(at_leaf, &n.at_leaf, leaf, set, step);
    }
    return n;
}
#endif

/* Classify with the widest vectors that this processor has. Return the length of each list. */
static inline __attribute__((always_inline)) tally classify(const tw_thresholds *th, tw_traversal *tv, int32_t count)
{
#ifdef TW_WIDE
    if (__builtin_cpu_supports("x86-64-v4"))
        return classify_sixteen(th, tv, count);
#endif
    return classify_each(th, tv, count);
}

/* Split a set: kernels that go left keep its number, the others get a new one. A set that goes one way stays whole.
 * Return the new length of `next`. */
static inline __attribute__((always_inline)) int32_t split_set(const tw_thresholds *th, tw_traversal *tv, int32_t set,
                                                               int32_t at, int32_t moved, const int32_t words)
{
    const tw_node node = th->forest->node[at];
    tw_leaf_sets *sets = &tv->leaves;
    uint64_t evaluated[TW_MAX_WORDS], *stays = sets->set + (ptrdiff_t)set * words;
    uint64_t *goes = sets->set + (ptrdiff_t)sets->count * words;
    const uint64_t *sent = evaluated;
    uint64_t some_left = 0, some_right = 0;
    if (tw_thresholds_unknown(th, tw_node_feature(node)))
        tw_thresholds_evaluate(th, at, evaluated);
    else
        sent = tw_thresholds_left_set(th, node, words);
    for (int32_t j = 0; j < words; j++) {
        goes[j] = stays[j] & ~sent[j];
        some_left |= stays[j] & sent[j], some_right |= goes[j];
    }
    const uint64_t all = some_left ? 0 : UINT64_MAX; /* all kernels go right: the set stays whole */
    for (int32_t j = 0; j < words; j++)
        stays[j] &= sent[j] | all;
    const int32_t child = at + tw_node_offset(node), both = (some_left != 0) & (some_right != 0);
    sets->tree[sets->count] = sets->tree[set];
    tv->next.set[moved] = set, tv->next.at[moved] = child + !some_left;
    tv->next.set[moved + 1] = sets->count, tv->next.at[moved + 1] = child + 1;
    sets->count += both;
    return moved + 1 + both;
}

/* Descend the trees. `words` is a constant after inlining, so that loops unroll. Return 0 or -1. */
static inline __attribute__((always_inline)) int traverse(const tw_thresholds *th, const int32_t *trees,
                                                          const int32_t *at, int32_t count, tw_traversal *tv,
                                                          const int32_t words)
{
    const tw_forest *f = th->forest;
    tw_leaf_sets *sets = &tv->leaves;
    uint64_t all[TW_MAX_WORDS];
    for (int32_t j = 0; j < words; j++)
        all[j] = th->count >= 64 * (j + 1) ? UINT64_MAX : th->count <= 64 * j ? 0 : (1ULL << th->count % 64) - 1;
    sets->count = 0, sets->words = words;
    for (int32_t first = 0; first < count; first += TREES_AT_ONCE) {
        int32_t open = count - first < TREES_AT_ONCE ? count - first : TREES_AT_ONCE;
        if (reserve(tv, open))
            return -1;
        for (int32_t i = 0; i < open; i++) {
            tv->current.set[i] = sets->count, tv->current.at[i] = at[first + i];
            sets->tree[sets->count] = trees[first + i];
            for (int32_t j = 0; j < words; j++)
                sets->set[sets->count * words + j] = all[j];
            sets->count++;
        }
        while (open) {
            if (reserve(tv, open))
                return -1;
            const tally n = classify(th, tv, open);
            for (int32_t i = 0; i < n.at_leaf; i++) {
                const int32_t set = tv->at_leaf.set[i];
                sets->value[set] = f->value[f->first[sets->tree[set]] + tv->at_leaf.at[i]];
            }
            open = n.moved;
            for (int32_t i = 0; i < n.undecided; i++)
                open = split_set(th, tv, tv->undecided.set[i], tv->undecided.at[i], open, words);
            const tw_positions other = tv->current;
            tv->current = tv->next, tv->next = other;
        }
    }
    return 0;
}

TW_CLONES int tw_traverse_trees(const tw_thresholds *th, const int32_t *trees, const int32_t *at, int32_t count,
                                tw_traversal *tv)
{
    if (th->words == 1)
        return traverse(th, trees, at, count, tv, 1);
    return th->words == 2 ? traverse(th, trees, at, count, tv, 2) : traverse(th, trees, at, count, tv, TW_MAX_WORDS);
}
