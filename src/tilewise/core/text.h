/* A fast reader of the trees in LightGBM's text models.
 *
 * The reader accepts only text that LightGBM writes. It refuses anything unusual without saying why: the slower reader
 * in model/_trees.py then decides and explains.
 */
#ifndef TILEWISE_TEXT_H
#define TILEWISE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* The nodes of all trees in one list, splits of a tree before its leaves, as in Ensemble (model/_trees.py). */
typedef struct {
    int32_t n_trees, depth; /* depth: most splits on a path */
    int64_t n_nodes;
    int64_t *roots;            /* (n_trees) first node of each tree */
    int64_t *feature;          /* (n_nodes) 0 for leaves */
    int64_t *children;         /* (2 n_nodes) right and left child; a leaf is its own child */
    double *threshold, *value; /* (n_nodes) */
    int8_t *missing;           /* (n_nodes) 0, 1 or 2: nothing, zero or NaN counts as missing */
    uint8_t *default_left;     /* (n_nodes) 1 if missing values go left */
} tw_text_trees;

/* Read trees from the line "Tree=0" to the line "end of trees". `text` has `length` bytes and a terminating \0.
 *
 * Return 0 and fill `trees`, which the caller frees with tw_text_free; or return -1 when the text is refused or memory
 * runs out, with nothing to free. */
int tw_text_read(const char *text, size_t length, int32_t n_features, tw_text_trees *trees);

/* Free the arrays of `trees` and zero it. */
void tw_text_free(tw_text_trees *trees);

#endif
