/* keyed_hash.h - hashes for tables whose keys come from a file.
 *
 * The key is random, new for each table: a file cannot be made whose words meet in one slot.  So values
 * differ from run to run; nothing may depend on them but where an entry lies. */
#ifndef EXF_BASE_KEYED_HASH_H
#define EXF_BASE_KEYED_HASH_H
#include <stddef.h>
#include <stdint.h>

typedef struct { uint64_t k[2]; } exf_hash_key;

exf_hash_key exf_hash_key_new(void);
/* SipHash-1-3 (Aumasson and Bernstein) of len bytes. */
uint64_t exf_keyed_hash(const exf_hash_key *key, const void *bytes, size_t len);
/* Of one integer: a keyed multiplication before and after a shift, of which the high bits count. */
static inline uint64_t exf_keyed_hash_u64(const exf_hash_key *key, uint64_t x)
{
    x = (x ^ key->k[0]) * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 32) * (key->k[1] | 1);
}
#endif
