package media

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"strconv"

	"remuda/internal/sim/openai"
)

// framesPerSecond is how many tokens a second of sound is, as in Whisper; tokensPerSecond
// is how many are spoken in it.
const framesPerSecond, tokensPerSecond = 50, 3

// Transcription is the form of /v1/audio/transcriptions and /v1/audio/translations.
type Transcription struct {
	Model    string
	Language string
	Prompt   string
	Format   string
	Stream   bool
	// Seconds is the length of the sound.
	Seconds float64
	file    []byte
}

// DecodeTranscription reads and checks a form.
func DecodeTranscription(contentType string, body []byte) (*Transcription, *openai.Error) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["boundary"] == "" {
		return nil, openai.BadRequest("", "the Content-Type %q has no boundary: want a multipart form", contentType)
	}
	t := Transcription{Format: "json", Language: "en"}
	form := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		var value []byte
		if err == nil {
			value, err = io.ReadAll(part)
		}
		if err != nil {
			return nil, openai.BadRequest("", "the form could not be read: %v", err)
		}
		if e := t.set(part.FormName(), value); e != nil {
			return nil, e
		}
	}
	switch {
	case t.file == nil:
		return nil, openai.BadRequest("file", "file is missing.")
	case len(t.file) == 0:
		return nil, openai.BadRequest("file", "file is empty: it must hold sound.")
	case t.Stream && t.Format == "verbose_json":
		return nil, openai.BadRequest("response_format", "verbose_json format doesn't support streaming case")
	}
	t.Seconds = seconds(t.file)
	return &t, nil
}

func (t *Transcription) set(name string, value []byte) *openai.Error {
	s := string(value)
	switch name {
	case "file":
		t.file = append([]byte{}, value...)
	case "model":
		t.Model = s
	case "language":
		t.Language = s
	case "prompt":
		t.Prompt = s
	case "response_format":
		if t.Format = s; s != "json" && s != "text" && s != "verbose_json" {
			return openai.BadRequest("response_format", "response_format must be \"json\", \"text\" or \"verbose_json\", got %q.", s)
		}
	case "stream":
		var err error
		if t.Stream, err = strconv.ParseBool(s); err != nil {
			return openai.BadRequest("stream", "stream: must be true or false, got %q", s)
		}
	case "temperature":
		if f, err := strconv.ParseFloat(s, 64); err != nil || f < 0 || f > 1 {
			return openai.BadRequest("temperature", "temperature must be in [0, 1], got %q.", s)
		}
	}
	return nil
}

// seconds is the length of a WAV file, and of any other one as if it had 128 kbit/s.
func seconds(file []byte) float64 {
	const header, most = 44, 24 * 3600
	rate, size := uint32(16000), uint32(len(file))
	if len(file) >= header && string(file[:4]) == "RIFF" && string(file[8:16]) == "WAVEfmt " && string(file[36:40]) == "data" {
		rate = binary.LittleEndian.Uint32(file[28:])
		size = min(binary.LittleEndian.Uint32(file[40:]), uint32(len(file)-header))
	}
	return min(float64(size)/float64(max(rate, 1)), most)
}

// Frames is how many tokens the sound is.
func (t *Transcription) Frames() int { return max(int(math.Ceil(t.Seconds*framesPerSecond)), 1) }

// Spoken is how many tokens the answer has at most.
func (t *Transcription) Spoken() int { return max(int(math.Ceil(t.Seconds*tokensPerSecond)), 1) }

// Text stands for the sound and the task in the model's context.
func (t *Transcription) Text(task string) string {
	h := fnv.New64a()
	_, _ = h.Write(t.file) // never fails
	return fmt.Sprintf("%s %s %016x %s\n", task, t.Language, h.Sum64(), t.Prompt)
}
