package openai

import (
	"strconv"
	"unicode/utf8"

	"remuda/internal/sim/text"
)

// chatLogprobs is the logprobs of a chat's choice:
// {"content":[{"token":…,"logprob":…,"bytes":[…],"top_logprobs":[…]}]}.
func chatLogprobs(pieces []text.Piece, top int) []byte {
	b := []byte(`{"content":[`)
	for i, p := range pieces {
		if i > 0 {
			b = append(b, ',')
		}
		list := text.Top(p, top)
		b = append(appendAlternative(append(b, '{'), list[0]), `,"top_logprobs":[`...)
		for j, alt := range list[:min(top, len(list))] {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(appendAlternative(append(b, '{'), alt), '}')
		}
		b = append(b, `]}`...)
	}
	return append(b, `]}`...)
}

func appendAlternative(b []byte, alt text.Alternative) []byte {
	b = appendString(append(b, `"token":`...), alt.Token)
	b = appendFloat(append(b, `,"logprob":`...), alt.Logprob)
	b = append(b, `,"bytes":[`...)
	for i := range len(alt.Token) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(alt.Token[i]), 10)
	}
	return append(b, ']')
}

func appendFloat(b []byte, f float64) []byte { return strconv.AppendFloat(b, f, 'f', 4, 64) }

// completionLogprobs is the logprobs of a completion's choice, whose first token stands
// after so many characters.
func completionLogprobs(pieces []text.Piece, top, offset int) []byte {
	var offsets, logprobs, tokens, tops []byte
	for i, p := range pieces {
		if i > 0 {
			offsets, logprobs, tokens, tops = append(offsets, ','), append(logprobs, ','), append(tokens, ','), append(tops, ',')
		}
		list := text.Top(p, top)
		offsets = strconv.AppendInt(offsets, int64(offset), 10)
		logprobs = appendFloat(logprobs, list[0].Logprob)
		tokens = appendString(tokens, p.Token)
		tops = append(tops, '{')
		for j, alt := range list {
			if j > 0 {
				tops = append(tops, ',')
			}
			tops = appendFloat(append(appendString(tops, alt.Token), ':'), alt.Logprob)
		}
		tops = append(tops, '}')
		offset += utf8.RuneCountInString(p.Token)
	}
	b := append([]byte(`{"text_offset":[`), offsets...)
	b = append(append(b, `],"token_logprobs":[`...), logprobs...)
	b = append(append(b, `],"tokens":[`...), tokens...)
	b = append(append(b, `],"top_logprobs":[`...), tops...)
	return append(b, `]}`...)
}
