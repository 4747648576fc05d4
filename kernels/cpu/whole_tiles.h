/* Products for a set that has a dot product of four bytes, in hardware or in plain C (vi_dot4), and whose parts are one
 * whole vector; included by such a set's vectors. */
enum { PART = LANES, PARTS = 1 };
typedef vf pf; /* one float for each lane of a part */
typedef vb pb; /* four bytes for each lane of a part */
#define pf_load vf_load
#define pf_set1 vf_set1
#define pf_store vf_store
#define pf_mul vf_mul
#define pf_fma vf_fma
#define pb_load vb_load
INLINE void vb_store_parts(uint8_t *p, int64_t bytes, vb x) {
  (void)bytes;
  vb_store(p, x);
}
INLINE void vf_store_parts(float *p, int64_t bytes, vf x) {
  (void)bytes;
  vf_store(p, x);
}

/* Sums of q * x over the 16 inputs of each lane's group; `bits` is the size of q, 8 for signed bytes. */
INLINE vi vi_group_dots(const vb q[4], const int8_t *x, int bits) {
  vi part[4];
  for (int j = 0; j < 4; j++) part[j] = vi_dot4(vi_zero(), q[j], vb_load(x + 64 * j), bits == 8);
  return vi_reduce4(part[0], part[1], part[2], part[3]);
}

/* The same where each q holds four inputs of every lane's group. */
INLINE pf pf_group_dots(const pb q[4], const uint8_t x[4][4 * PART], int bits) {
  vi dot = vi_zero();
  for (int k = 0; k < 4; k++) dot = vi_dot4(dot, q[k], pb_load(x[k]), bits == 8);
  return vf_from_vi(dot);
}
