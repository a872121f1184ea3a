package media

import (
	"math"
	"strconv"
	"strings"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
	"remuda/internal/sim/text"
)

// Transcript writes the answer to a Transcription.
type Transcript struct {
	Request *Transcription
	// Task is "transcribe" or "translate".
	Task string

	text strings.Builder
}

// ContentType is the answer's.
func (w *Transcript) ContentType(stream bool) string {
	if !stream && w.Request.Format == "text" {
		return "text/plain; charset=utf-8"
	}
	return openai.ContentType(stream)
}

type fields map[string]any

// Open appends nothing: a stream begins with its first token.
func (w *Transcript) Open(b []byte, _ []openai.Usage) []byte { return b }

// Token appends the event of one token.
func (w *Transcript) Token(b []byte, _ int, p text.Piece, _ openai.Usage) []byte {
	w.text.WriteString(p.Text)
	if p.Text == "" {
		return b
	}
	return sse.Append(b, "", fields{"type": "transcript.text.delta", "delta": p.Text})
}

// Garbage appends an event that is not part of the answer.
func (w *Transcript) Garbage(b []byte) []byte {
	return sse.Append(b, "", fields{"type": "transcript.text.delta", "delta": "garbage"})
}

// Close appends the last events.
func (w *Transcript) Close(b []byte, total openai.Usage) []byte {
	frames := w.Request.Frames()
	b = sse.Append(b, "", fields{"type": "transcript.text.done", "text": w.text.String(), "usage": fields{
		"type": "tokens", "input_tokens": total.Prompt, "output_tokens": total.Completion,
		"input_token_details": map[string]int{"text_tokens": total.Prompt - frames, "audio_tokens": frames},
		"total_tokens":        total.Prompt + total.Completion,
	}})
	return openai.Done(b)
}

type segment struct {
	ID               int     `json:"id"`
	Seek             int     `json:"seek"`
	Start            float64 `json:"start"`
	End              float64 `json:"end"`
	Text             string  `json:"text"`
	Tokens           []int   `json:"tokens"`
	Temperature      float64 `json:"temperature"`
	AvgLogprob       float64 `json:"avg_logprob"`
	CompressionRatio float64 `json:"compression_ratio"`
	NoSpeechProb     float64 `json:"no_speech_prob"`
}

// Whole is the answer that is not streamed.
func (w *Transcript) Whole(tokens [][]text.Piece, _ openai.Usage) []byte {
	for _, p := range tokens[0] {
		w.text.WriteString(p.Text)
	}
	said := w.text.String()
	length := w.Request.Seconds
	switch w.Request.Format {
	case "text":
		return []byte(said + "\n")
	case "verbose_json":
		return sse.JSON(fields{
			"task": w.Task, "duration": strconv.FormatFloat(length, 'f', -1, 64), "language": w.Request.Language, "text": said,
			"segments": []segment{{
				End: length, Text: said, Tokens: text.Encode(said), AvgLogprob: -0.25, CompressionRatio: 1.5, NoSpeechProb: 0.01,
			}},
			"words": nil,
		})
	default:
		return sse.JSON(fields{"text": said, "usage": fields{"type": "duration", "seconds": int(math.Ceil(length))}})
	}
}
