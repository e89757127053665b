/* TW_CLONES compiles a function for processors with AVX2 and AVX-512 as well; the dynamic loader picks the version for
 * this processor. All versions give the same results, because nothing is reordered or fused (-ffp-contract=off). */
#ifndef TILEWISE_CLONES_H
#define TILEWISE_CLONES_H

#include <limits.h> /* __GLIBC__ */

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define TW_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define TW_WIDE __attribute__((target("arch=x86-64-v4"))) /* call only if __builtin_cpu_supports("x86-64-v4") */
#else
#define TW_CLONES __attribute__((target_clones("avx2", "default")))
#endif
#else
#define TW_CLONES
#endif

#endif
