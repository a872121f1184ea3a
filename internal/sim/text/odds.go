package text

import "strings"

// EOS is the end mark as a token's text.
const EOS = imEnd

// Alternative is a token that could stand in a place of an answer.
type Alternative struct {
	Token   string
	Logprob float64
}

// Top is the token of p and then the tokens that were less likely in its place, n of
// them in all and at least the token itself, with their log probabilities.
func Top(p Piece, n int) []Alternative {
	x := mix(p.Odds ^ 0xa0761d6478bd642f)
	logprob := -float64(x%1000)/1000 - 0.001
	out := []Alternative{{p.Token, logprob}}
	for at := x / 1000 % uint64(len(words)); len(out) < n; at = (at + 1) % uint64(len(words)) {
		if t := spaceLower[at]; t != p.Token {
			x = mix(x + uint64(len(out)))
			logprob -= 0.5 + float64(x%1000)/1000
			out = append(out, Alternative{t, logprob})
		}
	}
	return out
}

// Draw is a number below n that the model takes after the text of the state; equal
// texts and purposes give equal numbers.
func (s State) Draw(purpose string, n int) int {
	return int(mix(s.Append("\x00"+purpose).hash) % uint64(n))
}

// Words are n words of the model's language after the text of the state.
func (s State) Words(n int) string {
	var b strings.Builder
	for i := range n {
		x := mix(s.hash + uint64(i))
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[x%uint64(len(words))])
	}
	return b.String()
}
