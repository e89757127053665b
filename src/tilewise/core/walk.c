#include "walk.h"
#include "clones.h"

#include <stdlib.h>
#include <string.h>
#ifdef TW_WIDE
#include <immintrin.h>
#endif

#define BLOCK 256 /* trees that are walked side by side: one waits for memory while others go on */

enum { BEYOND = 16, PLACES = 4 };

static tw_places *places_of(tw_walk *w, int32_t i)
{
    return i == 0 ? &w->here : i == 1 ? &w->next : i == 2 ? &w->parting : &w->arrived;
}

void tw_walk_free(tw_walk *w)
{
    for (int32_t i = 0; i < PLACES; i++) {
        free(places_of(w, i)->set);
        free(places_of(w, i)->at);
    }
    free(w->leaves.tree);
    free(w->leaves.value);
    free(w->leaves.set);
    *w = (tw_walk){0};
}

static int grow(int32_t **numbers, int64_t room)
{
    int32_t *grown = realloc(*numbers, (room + BEYOND) * sizeof *grown);
    *numbers = grown ? grown : *numbers;
    return grown ? 0 : -1;
}

/* Room for the sets of a step, each of which may part or arrive. */
static int reserve(tw_walk *w, int64_t count)
{
    const int64_t room = 4 * count, sets = 2 * (w->leaves.count + 2 * count);
    int failed = 0;
    if (2 * count > w->room) {
        for (int32_t i = 0; i < PLACES; i++)
            failed |= room > INT32_MAX / 4 || grow(&places_of(w, i)->set, room) || grow(&places_of(w, i)->at, room);
        w->room = failed ? w->room : (int32_t)room;
    }
    tw_sets *s = &w->leaves;
    if (sets / 2 > s->room && !failed) {
        double *value = realloc(s->value, sets * sizeof *value);
        s->value = value ? value : s->value;
        uint64_t *set = realloc(s->set, sets * TW_MOST_WORDS * sizeof *set);
        s->set = set ? set : s->set;
        failed = sets > INT32_MAX / TW_MOST_WORDS || !value || !set || grow(&s->tree, sets);
        s->room = failed ? s->room : (int32_t)sets;
    }
    return failed ? -1 : 0;
}

TW_CLONES int tw_walk_advance(const tw_cuts *c, int32_t *at, int32_t count, tw_walk *w)
{
    const tw_node *nodes = c->forest->node;
    const tw_range *ranges = c->range;
    if (reserve(w, count))
        return -1;
    int32_t *moving = w->here.set;
    for (int32_t i = 0; i < count; i++)
        moving[i] = i;
    while (count) { /* all of them a step, then those that moved another: many are in flight at once */
        int32_t left = 0;
        for (int32_t next = 0; next < count; next++) {
            const uint32_t i = (uint32_t)moving[next], here = (uint32_t)at[i];
            const tw_node node = nodes[here];
            const tw_range range = ranges[tw_node_feature(node)];
            const uint32_t level = (uint32_t)tw_node_level(node), right = level < range.low;
            const uint32_t decided = right | (level >= range.high);
            const uint32_t step = ((uint32_t)tw_node_step(node) + right) & -decided;
            __builtin_prefetch(nodes + here + step);
            at[i] = (int32_t)(here + step);
            moving[left] = (int32_t)i;
            left += decided;
        }
        count = left;
    }
    return 0;
}

typedef struct {
    int32_t moved, parting, arrived;
} tally;

/* Sort out where sets are: those that a range decides for move on to `next`, those at a leaf arrive, with its number, the
 * others part. Each is written to all three and kept where it belongs: a branch would be guessed wrong too often. */
static inline __attribute__((always_inline)) tally sort_out_each(const tw_cuts *c, tw_walk *w, int32_t count)
{
    const tw_node *nodes = c->forest->node;
    const int32_t n_features = c->forest->n_features;
    const tw_places here = w->here, next = w->next, parting = w->parting, arrived = w->arrived;
    tally n = {0};
    for (int32_t i = 0; i < count; i++) {
        const int32_t at = here.at[i], set = here.set[i];
        const tw_node node = nodes[at];
        const int32_t feature = tw_node_feature(node), level = tw_node_level(node), step = tw_node_step(node);
        const tw_range range = c->range[feature];
        const int32_t right = level < range.low, decided = right | (level >= range.high), leaf = feature == n_features;
        next.set[n.moved] = parting.set[n.parting] = arrived.set[n.arrived] = set;
        next.at[n.moved] = at + step + right;
        parting.at[n.parting] = at;
        arrived.at[n.arrived] = step;
        n.moved += decided;
        n.parting += !decided & !leaf;
        n.arrived += leaf;
    }
    return n;
}

#ifdef TW_WIDE
static inline __attribute__((always_inline)) TW_WIDE void keep(tw_places to, int32_t *count, __mmask16 which, __m512i set,
                                                               __m512i at)
{
    _mm512_storeu_si512(to.set + *count, _mm512_maskz_compress_epi32(which, set));
    _mm512_storeu_si512(to.at + *count, _mm512_maskz_compress_epi32(which, at));
    *count += __builtin_popcount(which);
}

/* The same by sixteens. */
TW_WIDE static tally sort_out_by_sixteens(const tw_cuts *c, tw_walk *w, int32_t count)
{
    const __m512i n_features = _mm512_set1_epi32(c->forest->n_features);
    const tw_places here = w->here, next = w->next, parting = w->parting, arrived = w->arrived;
    tally n = {0};
    for (int32_t i = 0; i < count; i += 16) {
        const __mmask16 some = count - i < 16 ? (__mmask16)((1u << (count - i)) - 1) : UINT16_MAX;
        const __m512i at = _mm512_maskz_loadu_epi32(some, here.at + i), set = _mm512_maskz_loadu_epi32(some, here.set + i);
        const __m512i node = _mm512_mask_i32gather_epi32(at, some, at, c->forest->node, 4);
        const __m512i feature = _mm512_and_si512(node, _mm512_set1_epi32(TW_FEATURE_BITS));
        const __m512i step = _mm512_and_si512(_mm512_srli_epi32(node, TW_STEP), _mm512_set1_epi32(TW_STEP_BITS));
        const __m512i level = _mm512_srli_epi32(node, TW_LEVEL);
        const __m512i range = _mm512_mask_i32gather_epi32(at, some, feature, c->range, 4);
        const __m512i low = _mm512_and_si512(range, _mm512_set1_epi32(0xffff)), high = _mm512_srli_epi32(range, 16);
        const __mmask16 right = _mm512_cmplt_epi32_mask(level, low), left = _mm512_cmpge_epi32_mask(level, high);
        const __mmask16 decided = some & (right | left), leaf = some & _mm512_cmpeq_epi32_mask(feature, n_features);
        const __m512i there = _mm512_add_epi32(at, step);
        keep(next, &n.moved, decided, set, _mm512_mask_add_epi32(there, right, there, _mm512_set1_epi32(1)));
        keep(parting, &n.parting, some & ~(decided | leaf), set, at);
        keep(arrived, &n.arrived, leaf, set, step);
    }
    return n;
}
#endif

static inline __attribute__((always_inline)) tally sort_out(const tw_cuts *c, tw_walk *w, int32_t count)
{
#ifdef TW_WIDE
    if (__builtin_cpu_supports("x86-64-v4"))
        return sort_out_by_sixteens(c, w, count);
#endif
    return sort_out_each(c, w, count);
}

/* Part a set: what goes left keeps its number, what goes right gets the next. Where all go one way it stays whole. */
static inline __attribute__((always_inline)) int32_t part(const tw_cuts *c, tw_walk *w, int32_t set, int32_t at,
                                                          int32_t moved, const int32_t words)
{
    const tw_node node = c->forest->node[at];
    tw_sets *sets = &w->leaves;
    uint64_t asked[TW_MOST_WORDS], *stays = sets->set + set * words, *goes = sets->set + sets->count * words;
    const uint64_t *sent = asked;
    uint64_t some_left = 0, some_right = 0;
    if (tw_cuts_unsure(c, tw_node_feature(node)))
        tw_cuts_ask(c, at, asked);
    else
        sent = tw_cuts_left(c, node, words);
    for (int32_t j = 0; j < words; j++) {
        goes[j] = stays[j] & ~sent[j];
        some_left |= stays[j] & sent[j], some_right |= goes[j];
    }
    const uint64_t all = some_left ? 0 : UINT64_MAX; /* all go right */
    for (int32_t j = 0; j < words; j++)
        stays[j] &= sent[j] | all;
    const int32_t child = at + tw_node_step(node), both = (some_left != 0) & (some_right != 0);
    sets->tree[sets->count] = sets->tree[set];
    w->next.set[moved] = set, w->next.at[moved] = child + !some_left;
    w->next.set[moved + 1] = sets->count, w->next.at[moved + 1] = child + 1;
    sets->count += both;
    return moved + 1 + both;
}

static inline __attribute__((always_inline)) int walk(const tw_cuts *c, const int32_t *trees, const int32_t *at,
                                                      int32_t count, tw_walk *w, const int32_t words)
{
    const tw_forest *f = c->forest;
    tw_sets *sets = &w->leaves;
    uint64_t all[TW_MOST_WORDS];
    for (int32_t j = 0; j < words; j++)
        all[j] = c->count >= 64 * (j + 1) ? UINT64_MAX : c->count <= 64 * j ? 0 : (1ull << c->count % 64) - 1;
    sets->count = 0, sets->words = words;
    for (int32_t first = 0; first < count; first += BLOCK) {
        int32_t open = count - first < BLOCK ? count - first : BLOCK;
        if (reserve(w, open))
            return -1;
        for (int32_t i = 0; i < open; i++) {
            w->here.set[i] = sets->count, w->here.at[i] = at[first + i];
            sets->tree[sets->count] = trees[first + i];
            for (int32_t j = 0; j < words; j++)
                sets->set[sets->count * words + j] = all[j];
            sets->count++;
        }
        while (open) {
            if (reserve(w, open))
                return -1;
            const tally n = sort_out(c, w, open);
            for (int32_t i = 0; i < n.arrived; i++) {
                const int32_t set = w->arrived.set[i];
                sets->value[set] = f->value[f->first[sets->tree[set]] + w->arrived.at[i]];
            }
            open = n.moved;
            for (int32_t i = 0; i < n.parting; i++)
                open = part(c, w, w->parting.set[i], w->parting.at[i], open, words);
            const tw_places other = w->here;
            w->here = w->next, w->next = other;
        }
    }
    return 0;
}

TW_CLONES int tw_walk_trees(const tw_cuts *c, const int32_t *trees, const int32_t *at, int32_t count, tw_walk *w)
{
    if (c->words == 1)
        return walk(c, trees, at, count, w, 1);
    return c->words == 2 ? walk(c, trees, at, count, w, 2) : walk(c, trees, at, count, w, TW_MOST_WORDS);
}
