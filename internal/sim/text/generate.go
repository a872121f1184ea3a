package text

import "strings"

// Reasons for which an answer ends, in OpenAI's words.
const (
	FinishStop   = "stop"
	FinishLength = "length"
)

// Params says what to generate.
type Params struct {
	// MaxTokens limits the answer, the end mark included; 0 means that only
	// the model's own end stops it.
	MaxTokens int
	// MinTokens is how many tokens must come before the end mark or a stop
	// string counts.
	MinTokens int
	// Choice is the index among the `n` answers to one request.
	Choice int
	// IgnoreEOS makes the model go on where it would have stopped.
	IgnoreEOS bool
	// Stop are strings that end the answer. The answer is cut before the one
	// that comes first, also where it spans several tokens.
	Stop []string
	// IncludeStop keeps the stop string in the answer.
	IncludeStop bool
}

// Piece is what one token adds to an answer.
type Piece struct {
	// Text is what may be shown now. It is empty for the end mark and while
	// the end of the answer could still turn out to be a stop string: the
	// tokens that could be a part of it are then shown all together or not at
	// all, as llama.cpp and Ollama hold them back. So what was shown never ends
	// inside a token, and another engine can go on from there exactly.
	Text string
	// Finish is empty except in the last piece.
	Finish string
	// StopReason is the stop string that ended the answer, if one did.
	StopReason string
}

// Generator produces an answer token by token.
type Generator struct {
	state  State
	params Params
	tokens int
	held   string
	done   bool
}

// NewGenerator starts an answer after the text that prompt has seen.
func NewGenerator(prompt State, p Params) *Generator {
	return &Generator{state: prompt, params: p}
}

// Tokens is how many tokens were generated, the end mark included.
func (g *Generator) Tokens() int { return g.tokens }

// Next generates one token. It must not be called after the last piece.
func (g *Generator) Next() Piece {
	if g.done {
		panic("text: Next called after the last piece")
	}
	early := g.tokens < g.params.MinTokens
	token, eos := g.state.Next(g.params.Choice, g.params.IgnoreEOS || early)
	g.tokens++
	if eos {
		return g.finish(Piece{Text: g.held, Finish: FinishStop})
	}
	g.state.fold(token)
	text := g.held + token
	if !early {
		if at, stop := firstStop(text, g.params.Stop); at >= 0 {
			if g.params.IncludeStop {
				at += len(stop)
			}
			return g.finish(Piece{Text: text[:at], Finish: FinishStop, StopReason: stop})
		}
	}
	if g.params.MaxTokens > 0 && g.tokens >= g.params.MaxTokens {
		return g.finish(Piece{Text: text, Finish: FinishLength})
	}
	if g.tokens >= g.params.MinTokens && partialStop(text, g.params.Stop) {
		g.held = text
		return Piece{}
	}
	g.held = ""
	return Piece{Text: text}
}

func (g *Generator) finish(p Piece) Piece {
	g.done, g.held = true, ""
	return p
}

// firstStop finds the stop string that begins first in text, or -1.
func firstStop(text string, stops []string) (at int, stop string) {
	at = -1
	for _, s := range stops {
		if i := strings.Index(text, s); i >= 0 && (at < 0 || i < at) {
			at, stop = i, s
		}
	}
	return at, stop
}

// partialStop tells whether an end of text begins a stop string.
func partialStop(text string, stops []string) bool {
	for _, s := range stops {
		for n := min(len(s)-1, len(text)); n > 0; n-- {
			if strings.HasSuffix(text, s[:n]) {
				return true
			}
		}
	}
	return false
}

// Answer is a whole answer.
type Answer struct {
	// Text is what the client gets.
	Text string
	// Tokens is the completion_tokens of the usage, the end mark included.
	Tokens int
	// Finish is FinishStop or FinishLength.
	Finish string
	// StopReason is the stop string that ended the answer, if one did.
	StopReason string
	// Pieces is what each token adds, in order: the texts of a stream's
	// events.
	Pieces []string
}

// Generate is the exact answer of an engine that serves model to a completion
// of prompt. Without a limit in p it ends at the model's own end.
func Generate(model, prompt string, p Params) Answer {
	g := NewGenerator(NewState(model).Append(prompt), p)
	var a Answer
	var b strings.Builder
	for {
		piece := g.Next()
		b.WriteString(piece.Text)
		a.Pieces = append(a.Pieces, piece.Text)
		if piece.Finish != "" {
			a.Text, a.Tokens, a.Finish, a.StopReason = b.String(), g.Tokens(), piece.Finish, piece.StopReason
			return a
		}
	}
}

// Complete is the exact answer to a completion of prompt with max_tokens
// maxTokens and nothing else set.
func Complete(model, prompt string, maxTokens int) Answer {
	return Generate(model, prompt, Params{MaxTokens: maxTokens})
}

// Chat is the exact answer to a chat completion with max_tokens maxTokens (0
// for none) and nothing else set.
func Chat(model string, messages []Message, maxTokens int) Answer {
	return Complete(model, Render(messages, true, false), maxTokens)
}

// ContinueChat is the exact answer to a chat completion with
// continue_final_message, whose last message holds the beginning of the answer.
func ContinueChat(model string, messages []Message, maxTokens int) Answer {
	return Complete(model, Render(messages, false, true), maxTokens)
}
