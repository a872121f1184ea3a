package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/internal/sim/text"
)

func TestPiecesAreTheTokens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[{}":, a-zé東🐎0-9]*`)).Draw(t, "text")
		pieces := text.Pieces(s)
		require.Len(t, pieces, text.Count(s))
		require.Equal(t, s, strings.Join(pieces, ""))
		for _, p := range pieces {
			require.True(t, utf8.ValidString(p), "%q", p)
		}
	})
}

// follow generates a whole answer and joins it by part.
func follow(p text.Params) (parts map[int]string, tokens int, last text.Piece) {
	g := text.NewGenerator(text.NewState("m"), p)
	parts = map[int]string{}
	for last.Finish == "" {
		last = g.Next()
		parts[last.Part] += last.Text
		tokens++
	}
	return parts, tokens, last
}

func TestScript(t *testing.T) {
	t.Parallel()
	calls := text.Script{{Call: "f", Text: `{"a":1}`}, {Call: "g", Text: `{}`}}
	parts, tokens, last := follow(text.Params{Script: calls, Stop: []string{"a"}, IgnoreEOS: true})
	require.Equal(t, map[int]string{0: `{"a":1}`, 1: `{}`}, parts)
	require.Equal(t, text.FinishStop, last.Finish)
	require.Equal(t, text.EOS, last.Token)
	require.Equal(t, 2+text.Count(`{"a":1}`)+text.Count(`{}`)+1, tokens, "a token begins each call and one ends the answer")

	words := text.Script{{Text: "The quiet horse rests."}}
	parts, _, last = follow(text.Params{Script: words, Stop: []string{" rests"}})
	require.Equal(t, "The quiet horse", parts[0])
	require.Equal(t, " rests", last.StopReason)
	parts, tokens, last = follow(text.Params{Script: words, MaxTokens: 2})
	require.Equal(t, "The quiet", parts[0])
	require.Equal(t, 2, tokens)
	require.Equal(t, text.FinishLength, last.Finish)

	require.Equal(t, text.Script{{Text: " horse rests."}}, words.After("The quiet"))
	require.Equal(t, words, words.After("Another"))
	require.Equal(t, calls, calls.After("{"))
}

func TestTop(t *testing.T) {
	t.Parallel()
	g := text.NewGenerator(text.NewState("m"), text.Params{})
	p := g.Next()
	list := text.Top(p, 5)
	require.Len(t, list, 5)
	require.Equal(t, p.Token, list[0].Token)
	seen := map[string]bool{}
	for i, alt := range list {
		require.False(t, seen[alt.Token])
		seen[alt.Token] = true
		require.Negative(t, alt.Logprob)
		if i > 0 {
			require.Less(t, alt.Logprob, list[i-1].Logprob)
		}
	}
	require.Len(t, text.Top(p, 0), 1)
}
