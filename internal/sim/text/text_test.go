package text_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// prompts are short texts of the kinds that matter to the model's first token.
func prompts(t *rapid.T) string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"Hello", "The end.", "a, ", "x,", "\n", " ", "東京", "Why?"}),
		rapid.StringN(1, 40, -1),
	).Draw(t, "prompt")
}

// TestGolden pins the language: other programs know these answers, so a change
// of the model must be meant.
func TestGolden(t *testing.T) {
	t.Parallel()
	assert.Equal(t, answers.Answer{
		Text:   "Señor vaquero tack north, small waits near wrangler lariat of mesa",
		Tokens: 12, Finish: text.FinishLength,
		Pieces: []string{"Señor", " vaquero", " tack", " north", ",", " small", " waits", " near", " wrangler", " lariat", " of", " mesa"},
	}, answers.Chat("demo", []text.Message{{Role: "user", Content: "Hello"}}, 12))
}

func TestContinuationGoesOnExactly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		model := rapid.SampledFrom([]string{"m", "org/model:7b"}).Draw(t, "model")
		prompt := prompts(t)
		whole := answers.Complete(model, prompt, 200)
		cut := rapid.IntRange(0, len(whole.Pieces)-1).Draw(t, "cut")
		begun := strings.Join(whole.Pieces[:cut], "")
		rest := answers.Complete(model, prompt+begun, 200-cut)
		assert.Equal(t, whole.Text, begun+rest.Text)
		assert.Equal(t, whole.Tokens, cut+rest.Tokens)
		assert.Equal(t, whole.Finish, rest.Finish)

		user := text.Message{Role: "user", Content: prompt}
		chat := answers.Chat(model, []text.Message{user}, 50)
		cut = rapid.IntRange(0, len(chat.Pieces)-1).Draw(t, "chat cut")
		begun = strings.Join(chat.Pieces[:cut], "")
		again := answers.ContinueChat(model, []text.Message{user, {Role: "assistant", Content: begun}}, 50-cut)
		assert.Equal(t, chat.Text, begun+again.Text)
		assert.Equal(t, chat.Finish, again.Finish)
	})
}

func TestStateDependsOnBytesAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.String().Draw(t, "a")
		b := rapid.String().Draw(t, "b")
		assert.Equal(t, text.NewState("m").Append(a+b), text.NewState("m").Append(a).Append(b))
	})
}

func TestAnswersDiffer(t *testing.T) {
	t.Parallel()
	base := answers.Complete("m", "Tell me a story.", 30).Text
	assert.NotEqual(t, base, answers.Complete("n", "Tell me a story.", 30).Text, "another model")
	assert.NotEqual(t, base, answers.Complete("m", "Tell me a story!", 30).Text, "another prompt")
	assert.NotEqual(t, base, answers.Generate("m", "Tell me a story.", text.Params{MaxTokens: 30, Choice: 1}).Text, "another choice")
}

func TestAnswersAreReadable(t *testing.T) {
	t.Parallel()
	var tokens, multibyte int
	const many = 400
	for i := range many {
		a := answers.Chat("m", []text.Message{{Role: "user", Content: fmt.Sprintf("question %d", i)}}, 0)
		tokens += a.Tokens
		require.True(t, utf8.ValidString(a.Text))
		require.Equal(t, text.FinishStop, a.Finish)
		require.Contains(t, ".!?", a.Text[len(a.Text)-1:])
		require.NotContains(t, a.Text, "  ")
		for _, r := range a.Text {
			if r >= utf8.RuneSelf {
				multibyte++
			}
		}
		require.Equal(t, a.Tokens-1, text.Count(a.Text), "every generated token is one token of the tokenizer: %q", a.Text)
	}
	mean := tokens / many
	assert.True(t, 50 <= mean && mean <= 200, "mean answer is %d tokens", mean)
	assert.Greater(t, multibyte, many, "characters that are not ASCII")
}

func TestTokenizerRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(
			rapid.String(),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
			rapid.Map(rapid.SliceOf(rapid.SampledFrom([]string{" ", "  ", "herd", "The", " café", "<|im_start|>", "<|im", "é", "🐎", "\xff", "\n"})),
				func(p []string) string { return strings.Join(p, "") }),
		).Draw(t, "text")
		ids := text.Encode(s)
		assert.Len(t, ids, text.Count(s))
		back, err := text.Decode(ids)
		require.NoError(t, err)
		assert.Equal(t, s, back)
		for _, id := range ids {
			assert.True(t, id >= 0 && id < text.VocabSize)
		}
	})
}

func TestDecodeRefusesForeignIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []int{-1, text.VocabSize, 1 << 60} {
		_, err := text.Decode([]int{65, id})
		require.ErrorContains(t, err, "position 1 is out of vocabulary")
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	messages := []text.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hi"}}
	const turns = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
	assert.Equal(t, turns+"<|im_start|>assistant\n", text.Render(messages, true, false))
	assert.Equal(t, turns, text.Render(messages, false, false))
	assert.Equal(t, turns+"<|im_start|>assistant\nWell", text.Render(append(messages, text.Message{Role: "assistant", Content: "Well"}), false, true))
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	dot := func(a, b []float32) (sum float64) {
		for i := range a {
			sum += float64(a[i]) * float64(b[i])
		}
		return sum
	}
	horse := text.Embed("m", "the quiet horse rests by the river", text.EmbeddingDim)
	assert.Len(t, horse, text.EmbeddingDim)
	assert.InDelta(t, 1, dot(horse, horse), 1e-5)
	assert.Equal(t, horse, text.Embed("m", "the quiet horse rests by the river", text.EmbeddingDim))
	near := text.Embed("m", "the quiet horse rests by the creek", text.EmbeddingDim)
	far := text.Embed("m", "SELECT 42 FROM dual", text.EmbeddingDim)
	assert.Greater(t, dot(horse, near), dot(horse, far)+0.3, "texts that share words are close")
	short := text.Embed("m", "the quiet horse rests by the river", 16)
	assert.Len(t, short, 16)
	assert.InDelta(t, 1, dot(short, short), 1e-5)
	assert.InDelta(t, float64(horse[0]/horse[1]), float64(short[0]/short[1]), 1e-3, "the first components, scaled")
}
