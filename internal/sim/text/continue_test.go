package text_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/text"
	"remuda/internal/testkit/answers"
)

// drawParams draws limits, and stop strings some of which are in the answer or nearly so.
func drawParams(t *rapid.T, model, prompt string) text.Params {
	p := text.Params{
		MaxTokens: rapid.IntRange(1, 90).Draw(t, "max_tokens"),
		IgnoreEOS: rapid.Bool().Draw(t, "ignore_eos"),
	}
	if rapid.Bool().Draw(t, "with min_tokens") {
		p.MinTokens = rapid.IntRange(0, p.MaxTokens).Draw(t, "min_tokens")
	}
	free := answers.Generate(model, prompt, text.Params{MaxTokens: 90, IgnoreEOS: true})
	for range rapid.IntRange(0, 3).Draw(t, "stops") {
		from := rapid.IntRange(0, len(free.Text)-1).Draw(t, "from")
		stop := free.Text[from:rapid.IntRange(from+1, min(len(free.Text), from+25)).Draw(t, "to")]
		stop = strings.ToValidUTF8(stop, "")
		if stop == "" || rapid.Bool().Draw(t, "near miss") {
			stop += "§"
		}
		p.Stop = append(p.Stop, stop)
		p.IncludeStop = rapid.Bool().Draw(t, "include")
	}
	return p
}

// said is what a client has after so many pieces: their text, and how many tokens that
// is. Tokens after the last one with text are held back, and no part of it.
func said(pieces []string) (text string, tokens int) {
	for i, p := range pieces {
		if p != "" {
			tokens = i + 1
		}
	}
	return strings.Join(pieces, ""), tokens
}

// TestAnyCutGoesOnExactly breaks an answer off after any of its tokens, twice, and lets
// another engine go on each time.
func TestAnyCutGoesOnExactly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		model := rapid.SampledFrom([]string{"m", "org/model:7b"}).Draw(t, "model")
		prompt := prompts(t)
		p := drawParams(t, model, prompt)
		whole := answers.Generate(model, prompt, p)
		begun, tokens := "", 0
		last := whole
		for range rapid.IntRange(1, 2).Draw(t, "cuts") {
			cut := rapid.IntRange(0, len(last.Pieces)-1).Draw(t, "cut")
			part, n := said(last.Pieces[:cut])
			begun, tokens = begun+part, tokens+n
			p.MaxTokens, p.MinTokens = p.MaxTokens-n, max(p.MinTokens-n, 0)
			last = answers.Generate(model, prompt+begun, p)
		}
		assert.Equal(t, whole.Text, begun+last.Text)
		assert.Equal(t, whole.Tokens, tokens+last.Tokens)
		assert.Equal(t, whole.Finish, last.Finish)
		assert.Equal(t, whole.StopReason, last.StopReason)
	})
}

// TestHeldBackTokensComeTogether: where a stop string may have begun, its tokens are
// shown whole as soon as it turns out that it has not.
func TestHeldBackTokensComeTogether(t *testing.T) {
	t.Parallel()
	p := text.Params{MaxTokens: 12, IgnoreEOS: true}
	free := answers.Generate("m", "Hello", p)
	first := free.Pieces[3]
	p.Stop = []string{first[len(first)-2:] + free.Pieces[4] + "§"}
	got := answers.Generate("m", "Hello", p)
	require.Equal(t, free.Text, got.Text)
	assert.Empty(t, got.Pieces[3], "its end may begin the stop string")
	assert.Empty(t, got.Pieces[4])
	assert.Equal(t, free.Pieces[3]+free.Pieces[4]+free.Pieces[5], got.Pieces[5])
}
