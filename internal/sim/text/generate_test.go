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

func TestLimits(t *testing.T) {
	t.Parallel()
	free := answers.Complete("m", "Hello", 0)
	require.Equal(t, text.FinishStop, free.Finish)
	require.Greater(t, free.Tokens, 3)
	require.Len(t, free.Pieces, free.Tokens)
	require.Empty(t, free.Pieces[free.Tokens-1], "the end mark is a token without text")

	tests := []struct {
		name   string
		params text.Params
		tokens int
		finish string
	}{
		{"one token", text.Params{MaxTokens: 1}, 1, text.FinishLength},
		{"one short of the end mark", text.Params{MaxTokens: free.Tokens - 1}, free.Tokens - 1, text.FinishLength},
		{"room for the end mark", text.Params{MaxTokens: free.Tokens}, free.Tokens, text.FinishStop},
		{"end ignored", text.Params{MaxTokens: free.Tokens + 20, IgnoreEOS: true}, free.Tokens + 20, text.FinishLength},
		{"end too early", text.Params{MaxTokens: 4000, MinTokens: free.Tokens + 1}, 0, text.FinishStop},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := answers.Generate("m", "Hello", tt.params)
			assert.Equal(t, tt.finish, a.Finish)
			if tt.tokens > 0 {
				assert.Equal(t, tt.tokens, a.Tokens)
			}
			assert.GreaterOrEqual(t, a.Tokens, tt.params.MinTokens)
			n := min(len(a.Text), len(free.Text))
			assert.Equal(t, free.Text[:n], a.Text[:n], "the text does not depend on the limits")
		})
	}
}

// TestStop compares the generator, which sees one token at a time and must not
// show what may become a stop string, with a search in the whole text.
func TestStop(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		prompt := prompts(t)
		free := answers.Generate("m", prompt, text.Params{MaxTokens: 80, IgnoreEOS: true})
		var stops []string
		for range rapid.IntRange(1, 3).Draw(t, "stops") {
			from := rapid.IntRange(0, len(free.Text)-1).Draw(t, "from")
			to := rapid.IntRange(from+1, min(len(free.Text), from+25)).Draw(t, "to")
			stop := free.Text[from:to]
			if rapid.Bool().Draw(t, "near miss") {
				stop += "§"
			}
			stops = append(stops, stop)
		}
		include := rapid.Bool().Draw(t, "include")
		got := answers.Generate("m", prompt, text.Params{MaxTokens: 80, IgnoreEOS: true, Stop: stops, IncludeStop: include})

		// The first token after which a stop string is there decides; of
		// several, the one that begins first.
		wantText, wantTokens, wantReason := free.Text, 80, ""
		sofar := ""
		for i, p := range free.Pieces {
			sofar += p
			at := -1
			for _, s := range stops {
				if j := strings.Index(sofar, s); j >= 0 && (at < 0 || j < at) {
					at, wantReason = j, s
				}
			}
			if at >= 0 {
				wantText, wantTokens = sofar[:at], i+1
				if include {
					wantText += wantReason
				}
				break
			}
		}
		assert.Equal(t, wantText, got.Text)
		assert.Equal(t, wantTokens, got.Tokens)
		assert.Equal(t, wantReason, got.StopReason)
		assert.Equal(t, got.Text, strings.Join(got.Pieces, ""), "the pieces are the text")
		shown := ""
		for _, p := range got.Pieces {
			shown += p
			assert.True(t, strings.HasPrefix(got.Text, shown), "%q was shown, the answer is %q", shown, got.Text)
		}
	})
}

func TestStopCountsFromMinTokensOn(t *testing.T) {
	t.Parallel()
	free := answers.Generate("m", "Hello", text.Params{MaxTokens: 20, IgnoreEOS: true})
	early := free.Pieces[2]
	got := answers.Generate("m", "Hello", text.Params{MaxTokens: 20, IgnoreEOS: true, Stop: []string{early}, MinTokens: 10})
	assert.GreaterOrEqual(t, got.Tokens, 10)
	assert.Contains(t, got.Text, early)
}

func TestNextAfterTheEndPanics(t *testing.T) {
	t.Parallel()
	g := text.NewGenerator(text.NewState("m"), text.Params{MaxTokens: 1})
	require.NotEmpty(t, g.Next().Finish)
	assert.Panics(t, func() { g.Next() })
}

func BenchmarkGenerate(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		answers.Generate("m", "Hello", text.Params{MaxTokens: 100, IgnoreEOS: true})
	}
}

func BenchmarkCount(b *testing.B) {
	prompt := strings.Repeat("The quiet horse rests by the river, señor. ", 1<<20/43)
	b.SetBytes(int64(len(prompt)))
	for b.Loop() {
		text.Count(prompt)
	}
}
