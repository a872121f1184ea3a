// Package answers has the exact answer of a simulated engine to any prompt, so that a
// test can tell a lost or a wrong token from a right one.
package answers

import (
	"strings"

	"remuda/internal/sim/text"
)

// Answer is a whole answer.
type Answer struct {
	// Text is what the client gets.
	Text string
	// Tokens is the completion_tokens of the usage, the end mark included.
	Tokens int
	// Finish is text.FinishStop or text.FinishLength.
	Finish string
	// StopReason is the stop string that ended the answer, if one did.
	StopReason string
	// Pieces is what each token adds, in order: the texts of a stream's
	// events.
	Pieces []string
}

// Generate is the exact answer of an engine that serves model to a completion
// of prompt. Without a limit in p it ends at the model's own end.
func Generate(model, prompt string, p text.Params) Answer {
	g := text.NewGenerator(text.NewState(model).Append(prompt), p)
	var a Answer
	var b strings.Builder
	for {
		piece := g.Next()
		b.WriteString(piece.Text)
		a.Pieces = append(a.Pieces, piece.Text)
		if piece.Finish != "" {
			a.Text, a.Tokens, a.Finish, a.StopReason = b.String(), len(a.Pieces), piece.Finish, piece.StopReason
			return a
		}
	}
}

// Complete is the exact answer to a completion of prompt with max_tokens
// maxTokens and nothing else set.
func Complete(model, prompt string, maxTokens int) Answer {
	return Generate(model, prompt, text.Params{MaxTokens: maxTokens})
}

// Chat is the exact answer to a chat completion with max_tokens maxTokens (0
// for none) and nothing else set.
func Chat(model string, messages []text.Message, maxTokens int) Answer {
	return Complete(model, text.Render(messages, true, false), maxTokens)
}

// ContinueChat is the exact answer to a chat completion with
// continue_final_message, whose last message holds the beginning of the answer.
func ContinueChat(model string, messages []text.Message, maxTokens int) Answer {
	return Complete(model, text.Render(messages, false, true), maxTokens)
}
