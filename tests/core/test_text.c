/* Unit tests of the tree text reader. An argument names one test; without it all tests run. */
#include "../../src/tilewise/core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* Record a failed expectation. */
#define EXPECT(CONDITION)                                                                                              \
    do {                                                                                                               \
        if (!(CONDITION)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #CONDITION);                                                             \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* A tree of one split and two leaves, and a tree of a single leaf. */
static const char SPLIT[] = "Tree=0\nnum_leaves=2\nnum_cat=0\nsplit_feature=1\nsplit_gain=3.5\nthreshold=0.25\n"
                            "decision_type=10\nleft_child=-1\nright_child=-2\nleaf_value=-1.5 2e300\nis_linear=0\n\n";
static const char LEAF[] = "Tree=1\nnum_leaves=1\nsplit_feature=\nthreshold=\ndecision_type=\nleft_child=\n"
                           "right_child=\nleaf_value=0.125\nis_linear=0\n\n";
static const char END[] = "end of trees\n\nfeature_importances:\n";

/* Read a copy of exactly `length` bytes and \0, so that the sanitizer sees every read beyond it. */
static int read_copy(const char *text, size_t length, tw_text_trees *trees)
{
    char *copy = malloc(length + 1);
    if (!copy)
        abort();
    memcpy(copy, text, length);
    copy[length] = 0;
    const int failed = tw_text_read(copy, length, 3, trees);
    free(copy);
    return failed;
}

/* Return 1 if a text is refused and nothing is left to free. */
static int refused(const char *text)
{
    tw_text_trees trees;
    const int failed = read_copy(text, strlen(text), &trees);
    const int empty = !trees.roots && !trees.feature && !trees.children && !trees.threshold && !trees.value &&
                      !trees.missing && !trees.default_left && !trees.n_trees && !trees.n_nodes;
    if (!failed)
        tw_text_free(&trees);
    return failed == -1 && empty;
}

/* Return 1 if the trees are refused after `from` was replaced by `to` in the split tree. */
static int refused_with(const char *from, const char *to)
{
    char text[8192];
    const char *at = strstr(SPLIT, from);
    if (!at)
        return 0;
    (void)snprintf(text, sizeof text, "%.*s%s%s%s", (int)(at - SPLIT), SPLIT, to, at + strlen(from), END);
    return refused(text);
}

static void test_whole_text(void)
{
    char text[2048];
    tw_text_trees t;
    (void)snprintf(text, sizeof text, "%s%s%s", SPLIT, LEAF, END);
    EXPECT(!read_copy(text, strlen(text), &t));
    EXPECT(t.n_trees == 2 && t.n_nodes == 4 && t.depth == 1);
    EXPECT(t.roots[0] == 0 && t.roots[1] == 3);
    EXPECT(t.feature[0] == 1 && t.threshold[0] == 0.25 && t.value[0] == 0.0);
    EXPECT(t.children[0] == 2 && t.children[1] == 1); /* right, left */
    EXPECT(t.missing[0] == 2 && t.default_left[0] == 1);
    for (ptrdiff_t i = 1; i < 4; i++)
        EXPECT(t.children[2 * i] == i && t.children[2 * i + 1] == i && t.feature[i] == 0 && t.missing[i] == 0);
    EXPECT(t.value[1] == -1.5 && t.value[2] == 2e300 && t.value[3] == 0.125);
    tw_text_free(&t);
    EXPECT(!t.roots && !t.n_nodes);
}

static void test_many_trees(void)
{
    const ptrdiff_t TREES = 300;
    char *text = malloc(TREES * sizeof SPLIT + sizeof END);
    if (!text)
        abort();
    size_t length = 0;
    for (int i = 0; i < TREES; i++) {
        memcpy(text + length, SPLIT, sizeof SPLIT - 1);
        length += sizeof SPLIT - 1;
    }
    memcpy(text + length, END, sizeof END);
    tw_text_trees t;
    EXPECT(!read_copy(text, strlen(text), &t));
    EXPECT(t.n_trees == TREES && t.n_nodes == 3 * TREES);
    EXPECT(t.roots[TREES - 1] == 3 * (TREES - 1) && t.children[2 * t.roots[TREES - 1]] == t.roots[TREES - 1] + 2);
    tw_text_free(&t);
    free(text);
}

/* Every prefix of a text is refused until its last line begins with "end of trees". */
static void test_truncated(void)
{
    char text[2048];
    (void)snprintf(text, sizeof text, "%s%s%s", SPLIT, LEAF, END);
    const size_t whole = (size_t)(strstr(text, "end of trees") - text) + strlen("end of trees");
    for (size_t length = 0; length <= strlen(text); length++) {
        tw_text_trees t;
        const int failed = read_copy(text, length, &t);
        EXPECT(failed == (length < whole ? -1 : 0));
        if (!failed)
            tw_text_free(&t);
    }
}

static void test_malformed(void)
{
    EXPECT(refused(""));
    EXPECT(refused("\n"));
    EXPECT(refused("end of trees\n"));
    EXPECT(refused("tree\nTree=0\n"));
    EXPECT(refused("num_leaves=1\nTree=0\nleaf_value=1\nend of trees\n"));
    EXPECT(refused("Tree=0\nend of trees\n"));
    EXPECT(refused_with("num_leaves=2", "num_leaves=0"));
    EXPECT(refused_with("num_leaves=2", "num_leaves=-2"));
    EXPECT(refused_with("num_leaves=2", "num_leaves=3"));
    EXPECT(refused_with("num_leaves=2", "num_leaves=2 "));
    EXPECT(refused_with("num_leaves=2\n", "num_leaves=2\nnum_leaves=2\n"));
    EXPECT(refused_with("num_leaves=2\n", ""));
    EXPECT(refused_with("leaf_value=-1.5 2e300", "leaf_value=-1.5"));
    EXPECT(refused_with("leaf_value=-1.5 2e300", "leaf_value=-1.5  2"));
    EXPECT(refused_with("leaf_value=-1.5 2e300", "leaf_value=-1.5 2 3"));
    EXPECT(refused_with("leaf_value=-1.5 2e300\n", ""));
    EXPECT(refused_with("threshold=0.25\n", ""));
    EXPECT(refused_with("is_linear=0", "is_linear=1"));
    EXPECT(refused_with("decision_type=10", "decision_type=1"));  /* categorical */
    EXPECT(refused_with("decision_type=10", "decision_type=12")); /* no kind of missing value has number 3 */
    EXPECT(refused_with("decision_type=10", "decision_type=-2"));
    EXPECT(refused_with("split_feature=1", "split_feature=3"));
    EXPECT(refused_with("split_feature=1", "split_feature=-1"));
    EXPECT(refused_with("left_child=-1", "left_child=0"));  /* its own parent */
    EXPECT(refused_with("left_child=-1", "left_child=-2")); /* a child of both sides */
    EXPECT(refused_with("left_child=-1", "left_child=3"));  /* beyond the nodes */
    EXPECT(refused_with("left_child=-1", "left_child=-4"));
    EXPECT(refused_with("Tree=0", "Tree=x"));
    EXPECT(refused_with("Tree=0\n", "Tree=0\r\n"));
    EXPECT(refused_with("num_cat=0", "num_cat=\xc3\xa9"));
    EXPECT(refused_with("num_cat=0", "num_cat=\t0"));
}

static void test_huge_numbers(void)
{
    static const char *const INTEGERS[] = {"9999999999", "-9999999999", "99999999999", "99999999999999999999",
                                           "1048577"};
    static const char *const KEYS[] = {"num_leaves=2",  "split_feature=1", "decision_type=10",
                                       "left_child=-1", "right_child=-2",  "is_linear=0"};
    static const char *const REALS[] = {"inf", "-inf", "nan", "1e999", "-1e999", "0x1p3", "-0x10", "-0X10",
                                        "",    " 1",   "1e",  "--1",   "1_0",    "-",     "-inf",  "-nan"};
    char to[128];
    for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
        for (size_t i = 0; i < sizeof INTEGERS / sizeof *INTEGERS; i++) {
            (void)snprintf(to, sizeof to, "%.*s=%s", (int)(strchr(KEYS[k], '=') - KEYS[k]), KEYS[k], INTEGERS[i]);
            EXPECT(refused_with(KEYS[k], to));
        }
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++) {
        (void)snprintf(to, sizeof to, "threshold=%s\n", REALS[i]);
        EXPECT(refused_with("threshold=0.25\n", to));
    }
    char text[2048]; /* the largest and the smallest finite numbers are read */
    tw_text_trees t;
    (void)snprintf(text, sizeof text, "Tree=0\nnum_leaves=1\nleaf_value=%s\nend of trees\n", "1.7976931348623157e+308");
    EXPECT(!read_copy(text, strlen(text), &t) && t.value[0] == 1.7976931348623157e+308 && t.depth == 0);
    tw_text_free(&t);
    (void)snprintf(text, sizeof text, "Tree=0\nnum_leaves=1\nleaf_value=%s\nend of trees\n", "-0");
    EXPECT(!read_copy(text, strlen(text), &t) && t.value[0] == 0.0 && signbit(t.value[0]));
    tw_text_free(&t);
}

/* A chain of `splits` splits: the left child of each is a leaf, the right child is the next split. Return 1 if refused.
 */
static int refused_chain(int splits)
{
    const size_t size = 64 * (size_t)(splits + 2) + 256;
    char *text = malloc(size);
    if (!text)
        abort();
    static const char *const KEYS[] = {"split_feature", "threshold", "decision_type", "left_child", "right_child"};
    size_t n = (size_t)snprintf(text, size, "Tree=0\nnum_leaves=%d\n", splits + 1);
    for (int key = 0; key < 5; key++) {
        n += (size_t)snprintf(text + n, size - n, "%s=", KEYS[key]);
        for (int i = 0; i < splits; i++) {
            const int right = i + 1 < splits ? i + 1 : -(splits + 1);
            const int number = key == 3 ? -(i + 1) : key == 4 ? right : 0;
            n += (size_t)snprintf(text + n, size - n, "%d%c", number, i + 1 < splits ? ' ' : '\n');
        }
    }
    n += (size_t)snprintf(text + n, size - n, "leaf_value=");
    for (int i = 0; i <= splits; i++)
        n += (size_t)snprintf(text + n, size - n, "1%c", i < splits ? ' ' : '\n');
    n += (size_t)snprintf(text + n, size - n, "end of trees\n");
    tw_text_trees t;
    const int failed = read_copy(text, n, &t);
    if (!failed) {
        EXPECT(t.depth == splits);
        tw_text_free(&t);
    }
    free(text);
    return failed != 0;
}

static void test_deep_chain(void)
{
    EXPECT(!refused_chain(4096));
    EXPECT(refused_chain(4097));
    EXPECT(refused_chain(200000));
}

/* Damage each byte of a text in several ways: the reader refuses it or returns a sound forest, and never reads
 * outside. */
static void test_damaged_bytes(void)
{
    static const char BYTES[] = {'0', '9', '-', '.', 'e', '=', ' ', '\n', 'x', '\0', '\x7f', '\xff'};
    char text[2048];
    (void)snprintf(text, sizeof text, "%s%s%s", SPLIT, LEAF, END);
    const size_t length = strlen(text);
    for (size_t at = 0; at < length; at++)
        for (size_t i = 0; i < sizeof BYTES; i++) {
            tw_text_trees t;
            const char saved = text[at];
            text[at] = BYTES[i];
            if (!read_copy(text, length, &t)) {
                EXPECT(t.n_trees >= 1 && t.roots[0] == 0);
                for (int64_t k = 0; k < 2 * t.n_nodes; k++)
                    EXPECT(t.children[k] >= k / 2 && t.children[k] < t.n_nodes);
                for (int64_t k = 0; k < t.n_nodes; k++)
                    EXPECT(t.feature[k] >= 0 && t.feature[k] < 3 && isfinite(t.value[k]));
                tw_text_free(&t);
            }
            text[at] = saved;
        }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } TESTS[] = {
        {"whole text", test_whole_text}, {"many trees", test_many_trees},     {"truncated", test_truncated},
        {"malformed", test_malformed},   {"huge numbers", test_huge_numbers}, {"damaged bytes", test_damaged_bytes},
        {"deep chain", test_deep_chain},
    };
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        if (argc < 2 || !strcmp(argv[1], TESTS[i].name))
            TESTS[i].run();
    return failures != 0;
}
