package text

import "math"

// EmbeddingDim is the length of a full embedding.
const EmbeddingDim = 384

// Embed is a deterministic unit vector for a text: the sum of one fixed random
// vector per token, so that texts that share words are close. A shorter dim
// keeps the first components and scales them to length one again, as models
// with nested (Matryoshka) embeddings do.
func Embed(model, input string, dim int) []float32 {
	sum := make([]float64, dim)
	seed := NewState(model).hash
	for _, id := range Encode(input) {
		x := mix(seed ^ uint64(id)*0x9e3779b97f4a7c15)
		for i := range sum {
			// xorshift64: fast, and good enough for directions.
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			sum[i] += float64(int32(x>>32)) / (1 << 31)
		}
	}
	var norm float64
	for _, v := range sum {
		norm += v * v
	}
	norm = math.Sqrt(norm)
	out := make([]float32, dim)
	if norm == 0 {
		out[0] = 1
		return out
	}
	for i, v := range sum {
		out[i] = float32(v / norm)
	}
	return out
}
