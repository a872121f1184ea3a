package gguf

import (
	"fmt"
	"math/rand/v2"
)

// Dimensions of the tiny model. They are the ones that were seen to load in
// Ollama 0.9.6.
const (
	blocks     = 2
	embedding  = 64
	heads      = 4
	feedFwd    = 128
	contextLen = 8192 // tokens; the model has no real limit, engines clamp to it

	tokenUnknown = 0
	tokenBegin   = 1
	tokenEnd     = 2
	firstByte    = 3 // token of byte 0x00; the other bytes follow
	vocabulary   = firstByte + 256
)

// Token types of the format.
const (
	tokenTypeUnknown = 2
	tokenTypeControl = 3
	tokenTypeByte    = 6
)

func metadata(o Options) []pair {
	tokens := []string{"<unk>", "<s>", "</s>"}
	types := []int32{tokenTypeUnknown, tokenTypeControl, tokenTypeControl}
	for b := range 256 {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		types = append(types, tokenTypeByte)
	}
	return []pair{
		{"general.architecture", "llama"},
		{"general.name", o.Name},
		{"general.file_type", uint32(0)}, // all tensors F32
		{"llama.vocab_size", uint32(vocabulary)},
		{"llama.context_length", uint32(contextLen)},
		{"llama.embedding_length", uint32(embedding)},
		{"llama.block_count", uint32(blocks)},
		{"llama.feed_forward_length", uint32(feedFwd)},
		{"llama.attention.head_count", uint32(heads)},
		{"llama.attention.head_count_kv", uint32(heads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(embedding / heads)},
		{"llama.rope.freq_base", float32(10000)},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.tokens", tokens},
		{"tokenizer.ggml.scores", make([]float32, vocabulary)},
		{"tokenizer.ggml.token_type", types},
		{"tokenizer.ggml.unknown_token_id", uint32(tokenUnknown)},
		{"tokenizer.ggml.bos_token_id", uint32(tokenBegin)},
		{"tokenizer.ggml.eos_token_id", uint32(tokenEnd)},
		{"tokenizer.ggml.add_bos_token", true},
		{"tokenizer.ggml.add_eos_token", false},
		{"tokenizer.ggml.add_space_prefix", false},
	}
}

// The residual stream reserves two of its dimensions, to which no block
// writes. dimBias holds the same large value for every token, so that a
// token's output weight there acts as the bias that the llama architecture
// lacks. dimSound holds the class of the current token (vowel or consonant),
// so that output weights can make the two alternate.
const (
	dimBias  = 0
	dimSound = 1
	reserved = 2
)

// The sizes below were chosen by reading what comes out: biases and context
// both matter, and no logit of a wanted token comes near an unwanted one's.
const (
	biasValue  = 8    // value of dimBias in every embedding
	soundValue = 2    // magnitude of dimSound in a letter's embedding
	biasScale  = 5.6  // about what the final normalization leaves of biasValue
	unwanted   = -60  // logit of a token that must never be emitted
	soundPush  = 1.5  // output weight against two vowels or consonants in a row
	avoidSelf  = 0.12 // output weight against the current token once more
)

// textBias holds the logit biases of the bytes that the model may emit: of
// letters about the natural logarithm of their share in English text, relative
// to each other; spaces and stops higher, because soundPush favours letters.
var textBias = map[byte]float32{
	' ': 2.4, '.': -1.2, ',': -1.2,
	'a': -0.7, 'b': -2.4, 'c': -1.8, 'd': -1.3, 'e': -0.3, 'f': -2, 'g': -2.1, 'h': -1,
	'i': -0.8, 'j': -4.5, 'k': -3.1, 'l': -1.4, 'm': -1.9, 'n': -0.9, 'o': -0.7, 'p': -2.2,
	'q': -4.8, 'r': -1, 's': -0.9, 't': -0.6, 'u': -1.7, 'v': -3, 'w': -1.9, 'x': -4.3,
	'y': -2.2, 'z': -5,
}

// sound is 1 for a vowel, -1 for a consonant and 0 for all else.
func sound(token int) float32 {
	switch b := token - firstByte; {
	case b == 'a' || b == 'e' || b == 'i' || b == 'o' || b == 'u':
		return 1
	case b >= 'a' && b <= 'z':
		return -1
	}
	return 0
}

func bias(token int) float32 {
	if token >= firstByte {
		if v, ok := textBias[byte(token-firstByte)]; ok {
			return v
		}
	}
	return unwanted
}

// weights makes all tensors in the order in which they are drawn from the
// seed.
func weights(seed uint64) []tensor {
	g := generator{rand.NewPCG(seed, 0x72656d756461)}

	embed := g.matrix("token_embd.weight", embedding, vocabulary, 1)
	for t := range vocabulary {
		row := embed.data[t*embedding : (t+1)*embedding]
		row[dimBias] = biasValue
		row[dimSound] = float32(soundValue * sound(t))
	}

	output := g.matrix("output.weight", embedding, vocabulary, 0.2)
	for t := range vocabulary {
		row := output.data[t*embedding : (t+1)*embedding]
		for i := reserved; i < embedding; i++ {
			// The conversion keeps the product from being fused into the
			// subtraction, which would change the bytes on some machines.
			row[i] -= float32(avoidSelf * embed.data[t*embedding+i])
		}
		row[dimBias] = bias(t) / biasScale
		row[dimSound] = float32(-soundPush * sound(t))
	}

	tensors := []tensor{embed, ones("output_norm.weight"), output}
	for b := range blocks {
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", b, s) }
		attnOut := g.matrix(name("attn_output"), embedding, embedding, 0.1)
		ffnDown := g.matrix(name("ffn_down"), feedFwd, embedding, 0.1)
		clear(attnOut.data[:reserved*embedding])
		clear(ffnDown.data[:reserved*feedFwd])
		tensors = append(tensors,
			ones(name("attn_norm")),
			g.matrix(name("attn_q"), embedding, embedding, 0.15),
			g.matrix(name("attn_k"), embedding, embedding, 0.15),
			g.matrix(name("attn_v"), embedding, embedding, 0.15),
			attnOut,
			ones(name("ffn_norm")),
			g.matrix(name("ffn_gate"), embedding, feedFwd, 0.1),
			g.matrix(name("ffn_up"), embedding, feedFwd, 0.1),
			ffnDown,
		)
	}
	return tensors
}

// ones is the weight of a normalization that scales nothing.
func ones(name string) tensor {
	t := tensor{name: name, shape: []uint64{embedding}, data: make([]float32, embedding)}
	for i := range t.data {
		t.data[i] = 1
	}
	return t
}

// generator draws weights. It uses only integer steps and one exact division
// per number, so that every machine and Go version draws the same.
type generator struct{ pcg *rand.PCG }

// uniform is a number in [-1, 1).
func (g generator) uniform() float32 {
	const steps = 1 << 23
	return float32(int64(g.pcg.Uint64()>>40)-steps) / steps
}

// matrix is a random matrix of the given inputs (columns) and outputs (rows),
// its entries evenly spread with about the standard deviation dev.
func (g generator) matrix(name string, in, out int, dev float32) tensor {
	const sqrt3 = 1.7320508 // range of a uniform distribution of deviation 1
	t := tensor{name: name, shape: []uint64{uint64(in), uint64(out)}, data: make([]float32, in*out)}
	for i := range t.data {
		t.data[i] = g.uniform() * dev * sqrt3
	}
	return t
}
