/* The trees of LightGBM's text model, as numbers.
 *
 * Reads what LightGBM writes and nothing else: any doubt is a refusal, and a slower reader that knows how to explain
 * (model/trees.py) decides.
 */
#ifndef TILEWISE_TEXT_H
#define TILEWISE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* All trees' nodes in one list, splits of a tree first; as model/trees.py has them. */
typedef struct {
    int32_t n_trees, depth;
    int64_t n_nodes;
    int64_t *roots, *feature, *children;
    double *threshold, *value;
    int8_t *missing;
    uint8_t *default_left;
} tw_text_trees;

/* Read from the first line "Tree=0" to the line "end of trees". 0, or -1: refused, nothing is held. `text` ends in \0. */
int tw_text_read(const char *text, size_t length, int32_t n_features, tw_text_trees *trees);
void tw_text_free(tw_text_trees *trees);

#endif
