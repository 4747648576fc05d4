/* Products for a set that has a dot product of four bytes, in hardware or in plain C (vi_dot4), and whose tiles are
 * one whole vector wide; included by such a set's vectors. */
typedef vf tf; /* one float for each row of a tile */
typedef vb tb; /* four bytes for each row of a tile */
enum { TILE_ROWS = 16 };
#define tf_set1 vf_set1
#define tf_load vf_load
#define tf_store vf_store
#define tf_add vf_add
#define tf_mul vf_mul
#define tf_fma vf_fma
#define tb_load vb_load

/* Sums of q * x over the 16 inputs of each lane's group; `bits` is the size of q, 8 for signed bytes. */
INLINE vi vi_group_dots(const vb q[4], const int8_t *x, int bits) {
  vi part[4];
  for (int j = 0; j < 4; j++) part[j] = vi_dot4(vi_zero(), q[j], vb_load(x + 64 * j), bits == 8);
  return vi_reduce4(part[0], part[1], part[2], part[3]);
}

/* The sum over one group of 16 inputs for every row of a tile. */
INLINE tf tf_group_dot(const tb w[4], const int8_t *x, int bits) {
  vi dot = vi_zero();
  for (int k = 0; k < 4; k++) dot = vi_dot4(dot, w[k], vb_broadcast4(x + 4 * k), bits == 8);
  return vf_from_vi(dot);
}
