package openai

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"remuda/internal/sim/text"
)

// Answer writes the answer to one chat or completion from the tokens of its choices.
type Answer struct {
	*Writer
	// RequestID names the calls of the answer.
	RequestID string
	// Script is what the choices follow, nil for prose.
	Script text.Script
	// Echo is what each choice begins with; nil without an echo.
	Echo []string
	// Sampling is the request's.
	Sampling *Sampling

	parts   []int // by choice, the part of the script that the last token belonged to, plus one
	offsets []int // by choice, the characters before the next token
	usage   Usage // what shown returns
}

// ContentType is the answer's.
func (a *Answer) ContentType(stream bool) string { return ContentType(stream) }

// ContentType is that of server-sent events, or of JSON.
func ContentType(stream bool) string {
	if stream {
		return "text/event-stream; charset=utf-8"
	}
	return "application/json"
}

// Open appends what comes before the first token: the role of every choice of a chat,
// the prompt of an echoed completion.
func (a *Answer) Open(b []byte, usages []Usage) []byte {
	a.parts, a.offsets = make([]int, len(usages)), make([]int, len(usages))
	for i := range usages {
		switch {
		case a.kind == Chat:
			b = a.Role(b, i, a.shown(usages[i]))
		case a.Echo != nil:
			b = a.Writer.Token(b, i, Choice{Text: a.Echo[i]}, a.shown(usages[i]), false)
			a.offsets[i] = utf8.RuneCountInString(a.Echo[i])
		}
	}
	return b
}

// shown is the usage that an event carries, if it does.
func (a *Answer) shown(u Usage) *Usage {
	if _, continuous := a.Sampling.Usage(); continuous {
		a.usage = u
		return &a.usage
	}
	return nil
}

// Token appends the event of one token.
func (a *Answer) Token(b []byte, index int, p text.Piece, u Usage) []byte {
	c := Choice{Text: p.Text, Finish: a.finish(p), StopReason: p.StopReason}
	if call := a.call(p.Part); call != "" {
		c.Text, c.Calls = "", []Call{{Index: p.Part, Arguments: p.Text}}
		if a.parts[index] <= p.Part {
			c.Calls[0].ID, c.Calls[0].Name = a.callID(index, p.Part), call
		}
		a.parts[index] = p.Part + 1
	}
	if a.Sampling.Top != nil {
		c.Logprobs = a.logprobs([]text.Piece{p}, a.offsets[index])
		a.offsets[index] += utf8.RuneCountInString(p.Token)
	}
	final, _ := a.Sampling.Usage()
	return a.Writer.Token(b, index, c, a.shown(u), !final)
}

// Garbage appends an event whose text is not the model's.
func (a *Answer) Garbage(b []byte) []byte {
	return a.Writer.Token(b, 0, Choice{Text: "garbage"}, nil, false)
}

// Close appends what comes after the last token.
func (a *Answer) Close(b []byte, total Usage) []byte {
	if final, _ := a.Sampling.Usage(); final {
		b = a.FinalUsage(b, total)
	}
	return Done(b)
}

// Whole is the answer to a request that is not streamed.
func (a *Answer) Whole(tokens [][]text.Piece, total Usage) []byte {
	choices := make([]Choice, len(tokens))
	for i, pieces := range tokens {
		var content strings.Builder
		offset := 0
		if a.Echo != nil {
			content.WriteString(a.Echo[i])
			offset = utf8.RuneCountInString(a.Echo[i])
		}
		c := &choices[i]
		for _, p := range pieces {
			if call := a.call(p.Part); call == "" {
				content.WriteString(p.Text)
			} else {
				if len(c.Calls) <= p.Part {
					c.Calls = append(c.Calls, Call{Index: p.Part, ID: a.callID(i, p.Part), Name: call})
				}
				c.Calls[p.Part].Arguments += p.Text
			}
			c.Finish, c.StopReason = a.finish(p), p.StopReason
		}
		c.Text = content.String()
		c.Logprobs = a.logprobs(pieces, offset)
	}
	return a.Answer(choices, total)
}

// call is the name of the function that a part of the script calls.
func (a *Answer) call(part int) string {
	if part < len(a.Script) {
		return a.Script[part].Call
	}
	return ""
}

func (a *Answer) callID(choice, part int) string {
	return "chatcmpl-tool-" + a.RequestID + "-" + strconv.Itoa(choice) + "-" + strconv.Itoa(part)
}

// finish is a token's finish reason as the client gets it.
func (a *Answer) finish(p text.Piece) string {
	if p.Finish == text.FinishStop && a.Script.Calls() {
		return "tool_calls"
	}
	return p.Finish
}

// logprobs is the log probabilities of some tokens as JSON; nil where the client did not
// ask for them.
func (a *Answer) logprobs(pieces []text.Piece, offset int) []byte {
	if a.Sampling.Top == nil {
		return nil
	}
	if a.kind == Chat {
		return chatLogprobs(pieces, *a.Sampling.Top)
	}
	return completionLogprobs(pieces, *a.Sampling.Top, offset)
}
