/* The reader of tree texts under libFuzzer: any text is refused, or gives nodes that are whole trees. */
#include "../../src/tilewise/core/text.h"

#include <stdlib.h>
#include <string.h>

/* libFuzzer calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); // NOLINT(misc-use-internal-linkage)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tw_text_trees trees;
    char *text = malloc(size + 1); /* of exactly this size, so that the sanitizer sees every read beyond it */
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = 0;
    if (!tw_text_read(text, size, 40, &trees)) {
        for (int32_t t = 0; t < trees.n_trees; t++)
            if (trees.roots[t] < 0 || trees.roots[t] >= trees.n_nodes)
                abort();
        for (int64_t i = 0; i < trees.n_nodes; i++) {
            const int64_t right = trees.children[2 * i], left = trees.children[2 * i + 1];
            if (right < 0 || right >= trees.n_nodes || left < 0 || left >= trees.n_nodes)
                abort();
            if (trees.feature[i] < 0 || trees.feature[i] >= 40 || trees.missing[i] < 0 || trees.missing[i] > 2)
                abort();
        }
        tw_text_free(&trees);
    }
    free(text);
    return 0;
}
