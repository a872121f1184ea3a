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
	// Script is what the model says instead of its own prose; nil for prose. Stop
	// strings do not apply to a script with calls.
	Script Script
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
	// Part is the part of the script that Text belongs to; 0 for prose.
	Part int
	// Token is the token itself, EOS for the end mark.
	Token string
	// Odds is what Top draws the token's alternatives from.
	Odds uint64
}

// Generator produces an answer token by token.
type Generator struct {
	state  State
	params Params
	script []scripted // what is left of the script
	tokens int
	held   string
	done   bool
}

// NewGenerator starts an answer after the text that prompt has seen.
func NewGenerator(prompt State, p Params) *Generator {
	if p.Script.Calls() {
		p.Stop = nil
	}
	return &Generator{state: prompt, params: p, script: p.Script.tokens()}
}

// Next generates one token. It must not be called after the last piece.
func (g *Generator) Next() Piece {
	if g.done {
		panic("text: Next called after the last piece")
	}
	early := g.tokens < g.params.MinTokens
	token, part, eos := g.token(early)
	p := Piece{Part: part, Token: token, Odds: g.state.hash}
	g.tokens++
	if eos {
		p.Text, p.Finish, p.Token = g.held, FinishStop, EOS
		return g.finish(p)
	}
	g.state.fold(token)
	text := g.held + token
	if !early {
		if at, stop := firstStop(text, g.params.Stop); at >= 0 {
			if g.params.IncludeStop {
				at += len(stop)
			}
			p.Text, p.Finish, p.StopReason = text[:at], FinishStop, stop
			return g.finish(p)
		}
	}
	if g.params.MaxTokens > 0 && g.tokens >= g.params.MaxTokens {
		p.Text, p.Finish = text, FinishLength
		return g.finish(p)
	}
	if g.tokens >= g.params.MinTokens && partialStop(text, g.params.Stop) {
		g.held = text
		return p
	}
	g.held = ""
	p.Text = text
	return p
}

// token is the next token of the script, or else of the model.
func (g *Generator) token(early bool) (token string, part int, eos bool) {
	if g.params.Script == nil {
		token, eos = g.state.Next(g.params.Choice, g.params.IgnoreEOS || early)
		return token, 0, eos
	}
	if len(g.script) == 0 {
		return "", len(g.params.Script) - 1, true
	}
	next := g.script[0]
	g.script = g.script[1:]
	return next.text, next.part, false
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
