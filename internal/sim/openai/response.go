package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"
)

// Fingerprint is the system_fingerprint of every answer.
const Fingerprint = "remuda-sim"

// Usage counts tokens.
type Usage struct {
	Prompt, Completion int
}

func (u Usage) append(b []byte) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Prompt+u.Completion), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Completion), 10)
	return append(b, `,"prompt_tokens_details":null}`...)
}

// Kind is one of the two shapes of an answer.
type Kind int

// The kinds of answers.
const (
	Chat Kind = iota
	Completion
)

func (k Kind) object(stream bool) string {
	switch {
	case k == Completion:
		return "text_completion" // the same for both
	case stream:
		return "chat.completion.chunk"
	default:
		return "chat.completion"
	}
}

// IDPrefix begins the answers' ids.
func (k Kind) IDPrefix() string {
	if k == Chat {
		return "chatcmpl-"
	}
	return "cmpl-"
}

// Choice is one finished answer.
type Choice struct {
	Text       string
	Finish     string
	StopReason string
}

// Writer writes the answers to one request. Its output is appended by hand: a
// stream writes one object per token.
type Writer struct {
	kind   Kind
	prefix []byte // of every event, up to the choices
	head   []byte // of a whole answer, likewise
}

// NewWriter fixes what all parts of an answer share. Created is in Unix
// seconds.
func NewWriter(kind Kind, id, model string, created int64) *Writer {
	begin := func(stream bool) []byte {
		b := appendString([]byte(`{"id":`), id)
		b = appendString(append(b, `,"object":`...), kind.object(stream))
		b = strconv.AppendInt(append(b, `,"created":`...), created, 10)
		b = appendString(append(b, `,"model":`...), model)
		return append(b, `,"choices":[`...)
	}
	return &Writer{kind: kind, prefix: append([]byte("data: "), begin(true)...), head: begin(false)}
}

// Role appends the event that opens one choice of a chat stream.
func (w *Writer) Role(b []byte, index int, usage *Usage) []byte {
	b = append(b, w.prefix...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(index), 10)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	return endEvent(b, usage, false)
}

// Token appends the event of one token. Usage is nil unless every event
// carries it; last asks for the fingerprint.
func (w *Writer) Token(b []byte, index int, c Choice, usage *Usage, last bool) []byte {
	b = append(b, w.prefix...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(index), 10)
	if w.kind == Chat {
		b = append(appendString(append(b, `,"delta":{"content":`...), c.Text), '}')
	} else {
		b = appendString(append(b, `,"text":`...), c.Text)
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = appendFinish(b, c)
	b = append(b, `}]`...)
	return endEvent(b, usage, last && c.Finish != "")
}

// FinalUsage appends the event with the usage of the whole request.
func (w *Writer) FinalUsage(b []byte, u Usage) []byte {
	b = append(append(b, w.prefix...), ']')
	return endEvent(b, &u, true)
}

// Done appends the stream's last event.
func Done(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) }

// Answer is the whole answer to a request that is not streamed.
func (w *Writer) Answer(choices []Choice, u Usage) []byte {
	b := append([]byte(nil), w.head...)
	for i, c := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
		if w.kind == Chat {
			b = appendString(append(b, `,"message":{"role":"assistant","content":`...), c.Text)
			b = append(b, `,"refusal":null,"tool_calls":[]}`...)
		} else {
			b = appendString(append(b, `,"text":`...), c.Text)
		}
		b = append(b, `,"logprobs":null,"finish_reason":`...)
		b = append(appendFinish(b, c), '}')
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":"`+Fingerprint+`","usage":`...)
	return append(u.append(b), '}')
}

func appendFinish(b []byte, c Choice) []byte {
	if c.Finish == "" {
		return append(b, "null"...)
	}
	b = append(appendString(b, c.Finish), `,"stop_reason":`...)
	if c.StopReason == "" {
		return append(b, "null"...)
	}
	return appendString(b, c.StopReason)
}

func endEvent(b []byte, usage *Usage, fingerprint bool) []byte {
	if fingerprint {
		b = append(b, `,"system_fingerprint":"`+Fingerprint+`"`...)
	}
	if usage != nil {
		b = usage.append(append(b, `,"usage":`...))
	}
	return append(b, "}\n\n"...)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err) // cannot happen: invalid UTF-8 is replaced
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// Embeddings is the answer of /v1/embeddings.
func Embeddings(id, model string, created int64, vectors [][]float32, asBase64 bool, u Usage) []byte {
	b := appendString([]byte(`{"id":`), id)
	b = append(b, `,"object":"list","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = appendString(append(b, `,"model":`...), model)
	b = append(b, `,"data":[`...)
	for i, v := range vectors {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
		b = append(b, `,"object":"embedding","embedding":`...)
		if asBase64 {
			raw := make([]byte, 0, 4*len(v))
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			b = append(b, '"')
			b = base64.StdEncoding.AppendEncode(b, raw)
			b = append(b, '"')
		} else {
			sep := byte('[')
			for _, x := range v {
				b = strconv.AppendFloat(append(b, sep), float64(x), 'g', -1, 32)
				sep = ','
			}
			b = append(b, ']')
		}
		b = append(b, '}')
	}
	b = append(b, `],"usage":`...)
	return append(u.append(b), '}')
}

// Models is the answer of /v1/models.
func Models(model string, created int64, maxModelLen int) []byte {
	type permission struct {
		ID                 string  `json:"id"`
		Object             string  `json:"object"`
		Created            int64   `json:"created"`
		AllowCreateEngine  bool    `json:"allow_create_engine"`
		AllowSampling      bool    `json:"allow_sampling"`
		AllowLogprobs      bool    `json:"allow_logprobs"`
		AllowSearchIndices bool    `json:"allow_search_indices"`
		AllowView          bool    `json:"allow_view"`
		AllowFineTuning    bool    `json:"allow_fine_tuning"`
		Organization       string  `json:"organization"`
		Group              *string `json:"group"`
		IsBlocking         bool    `json:"is_blocking"`
	}
	type card struct {
		ID          string       `json:"id"`
		Object      string       `json:"object"`
		Created     int64        `json:"created"`
		OwnedBy     string       `json:"owned_by"`
		Root        string       `json:"root"`
		Parent      *string      `json:"parent"`
		MaxModelLen int          `json:"max_model_len"`
		Permission  []permission `json:"permission"`
	}
	b, err := json.Marshal(struct {
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", []card{{
		ID: model, Object: "model", Created: created, OwnedBy: "remuda-sim", Root: model, MaxModelLen: maxModelLen,
		Permission: []permission{{
			ID: "modelperm-" + model, Object: "model_permission", Created: created,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
		}},
	}}})
	if err != nil {
		panic(err) // cannot happen: all fields are plain values
	}
	return b
}
