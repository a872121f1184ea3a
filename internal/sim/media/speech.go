package media

import (
	"encoding/base64"
	"encoding/binary"
	"unicode/utf8"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
	"remuda/internal/sim/text"
)

// The sound is 16-bit PCM with one channel; each token is a tenth of a second of it.
const (
	sampleRate      = 24000
	samplesPerToken = sampleRate / 10
	maxInput        = 4096 // characters, OpenAI's limit
)

// Speech is the body of /v1/audio/speech.
type Speech struct {
	Model        *string  `json:"model"`
	Input        string   `json:"input"`
	Voice        any      `json:"voice"`
	Format       *string  `json:"response_format"`
	Speed        *float64 `json:"speed"`
	StreamFormat *string  `json:"stream_format"`
}

// DecodeSpeech reads and checks a request.
func DecodeSpeech(body []byte) (*Speech, *openai.Error) {
	var r Speech
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	switch n := utf8.RuneCountInString(r.Input); {
	case n == 0:
		return nil, openai.BadRequest("input", "input is missing.")
	case n > maxInput:
		return nil, openai.BadRequest("input", "input has %d characters: must be at most %d.", n, maxInput)
	}
	if f := openai.Or(r.Format, "wav"); f != "wav" && f != "pcm" {
		return nil, openai.BadRequest("response_format", "response_format must be \"wav\" or \"pcm\", got %q.", f)
	}
	if s := openai.Or(r.Speed, 1); s < 0.25 || s > 4 {
		return nil, openai.BadRequest("speed", "speed must be in [0.25, 4], got %v.", s)
	}
	if f := openai.Or(r.StreamFormat, "audio"); f != "audio" && f != "sse" {
		return nil, openai.BadRequest("stream_format", "stream_format must be \"audio\" or \"sse\", got %q.", f)
	}
	return &r, nil
}

// Sound writes the answer to a Speech, which is streamed in any case.
type Sound struct {
	Request *Speech
	// Tokens is the length of the sound.
	Tokens int
}

func (w *Sound) events() bool { return openai.Or(w.Request.StreamFormat, "audio") == "sse" }

// ContentType is the answer's.
func (w *Sound) ContentType(bool) string {
	switch {
	case w.events():
		return openai.ContentType(true)
	case openai.Or(w.Request.Format, "wav") == "pcm":
		return "audio/pcm"
	default:
		return "audio/wav"
	}
}

// sound appends bytes of the file.
func (w *Sound) sound(b, sound []byte) []byte {
	if w.events() {
		return sse.Append(b, "", fields{"type": "speech.audio.delta", "audio": base64.StdEncoding.EncodeToString(sound)})
	}
	return append(b, sound...)
}

// Open appends the header of a WAV file.
func (w *Sound) Open(b []byte, _ []openai.Usage) []byte {
	if openai.Or(w.Request.Format, "wav") == "pcm" {
		return b
	}
	const header = 36 // what follows the file's length and is not sound
	size := uint32(w.Tokens * samplesPerToken * 2)
	h := binary.LittleEndian.AppendUint32([]byte("RIFF"), header+size)
	h = binary.LittleEndian.AppendUint32(append(h, "WAVEfmt "...), 16)
	h = binary.LittleEndian.AppendUint16(h, 1) // PCM
	h = binary.LittleEndian.AppendUint16(h, 1) // channel
	h = binary.LittleEndian.AppendUint32(h, sampleRate)
	h = binary.LittleEndian.AppendUint32(h, sampleRate*2)
	h = binary.LittleEndian.AppendUint16(h, 2)
	h = binary.LittleEndian.AppendUint16(h, 16)
	h = binary.LittleEndian.AppendUint32(append(h, "data"...), size)
	return w.sound(b, h)
}

// Token appends the sound of one token: a tone of its own.
func (w *Sound) Token(b []byte, _ int, p text.Piece, _ openai.Usage) []byte {
	const loudness = 8000
	period := 40 + int(p.Odds%200) // samples
	pcm := make([]byte, 0, samplesPerToken*2)
	for i := range samplesPerToken {
		level := int16(loudness - 2*loudness*(i%period)/period)
		pcm = binary.LittleEndian.AppendUint16(pcm, uint16(level))
	}
	return w.sound(b, pcm)
}

// Garbage appends what is not part of the sound.
func (w *Sound) Garbage(b []byte) []byte { return w.sound(b, []byte("garbage")) }

// Close appends what comes after the sound.
func (w *Sound) Close(b []byte, total openai.Usage) []byte {
	if !w.events() {
		return b
	}
	return sse.Append(b, "", fields{"type": "speech.audio.done", "usage": map[string]int{
		"input_tokens": total.Prompt, "output_tokens": total.Completion, "total_tokens": total.Prompt + total.Completion,
	}})
}

// Whole is the file at once.
func (w *Sound) Whole(tokens [][]text.Piece, total openai.Usage) []byte {
	b := w.Open(nil, nil)
	for _, p := range tokens[0] {
		b = w.Token(b, 0, p, total)
	}
	return w.Close(b, total)
}
