package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/controller/pipeline"
)

// object is what OpenAI calls an answer, or a piece of one.
func (x *exchange) object(piece bool) string {
	switch {
	case x.asked.endpoint == pipeline.Completions:
		return "text_completion"
	case piece:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

// frame is what an answer and its pieces have in common.
type frame struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int              `json:"index"`
	Message      *content         `json:"message,omitempty"`
	Delta        *content         `json:"delta,omitempty"`
	Text         *string          `json:"text,omitempty"`
	Logprobs     *json.RawMessage `json:"logprobs"`
	FinishReason *string          `json:"finish_reason"`
}

type content struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

func (x *exchange) frame(piece bool, choices ...choice) frame {
	return frame{ID: x.reply, Object: x.object(piece), Created: x.began.Unix(), Model: x.name, Choices: append([]choice{}, choices...)}
}

// chunk is a piece of an answer that the client's API has another form for than the step's,
// or that was computed.
func (x *exchange) chunk(text string, first bool, reason *string) []byte {
	one := choice{FinishReason: reason}
	if x.asked.endpoint == pipeline.Completions {
		one.Text = &text
	} else {
		one.Delta = &content{}
		if first {
			one.Delta.Role = "assistant"
		}
		if text != "" || first {
			one.Delta.Content = &text
		}
	}
	return mustJSON(x.frame(true, one))
}

// adopt makes a step's answer, or a piece of one, the pipeline's own: all but the ID, the
// time, the model and the usage is as the engine said it. data is a JSON object.
func (x *exchange) adopt(data []byte) []byte {
	var v map[string]json.RawMessage
	if json.Unmarshal(data, &v) != nil || v == nil {
		v = map[string]json.RawMessage{} // it was read before: it is an object
	}
	v["id"], v["created"], v["model"] = mustJSON(x.reply), mustJSON(x.began.Unix()), mustJSON(x.name)
	delete(v, "usage")
	return mustJSON(v)
}

// answer sends the whole answer, or the end of the stream. It reports whether the stream was cut.
func (x *exchange) answer(r pipeline.Result) (cut bool) {
	if x.asked.stream {
		return x.endStream(r)
	}
	used := usageOf(r.Usage)
	var b []byte
	if body, ok := r.Answer.Body.([]byte); ok && x.sameForm(body) {
		var v map[string]json.RawMessage
		_ = json.Unmarshal(x.adopt(body), &v) // it is an object: adopt made it
		v["usage"] = mustJSON(used)
		b = mustJSON(v)
	} else {
		one := choice{FinishReason: reason(r.Answer)}
		if x.asked.endpoint == pipeline.Completions {
			one.Text = &r.Answer.Text
		} else {
			one.Message = &content{Role: "assistant", Content: &r.Answer.Text}
		}
		f := x.frame(false, one)
		f.Usage = &used
		b = mustJSON(f)
	}
	h := x.w.Header()
	h.Set("Content-Type", contentJSON)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	x.w.WriteHeader(http.StatusOK)
	_, _ = x.w.Write(b) // a client that is gone needs no answer
	return false
}

// sameForm tells whether a step's whole answer is of the client's API.
func (x *exchange) sameForm(body []byte) bool {
	var v struct {
		Choices []struct {
			Message json.RawMessage `json:"message"`
		} `json:"choices"`
	}
	return json.Unmarshal(body, &v) == nil && len(v.Choices) > 0 && (len(v.Choices[0].Message) > 0) == (x.asked.endpoint == pipeline.Chat)
}

func reason(a pipeline.Answer) *string {
	if a.FinishReason == "" {
		return nil
	}
	return &a.FinishReason
}

// endStream sends what a stream has not had yet, and reports whether the stream was cut.
func (x *exchange) endStream(r pipeline.Result) (cut bool) {
	var b []byte
	if !x.isAnswering() { // computed, or of an engine that would not stream
		b = append(b, event(x.chunk(r.Answer.Text, true, nil))...)
		b = append(b, event(x.chunk("", false, reason(r.Answer)))...)
	}
	if x.asked.usage {
		f := x.frame(true)
		used := usageOf(r.Usage)
		f.Usage = &used
		b = append(b, event(mustJSON(f))...)
	}
	b = append(b, "data: [DONE]\n\n"...)
	return x.write(b) != nil
}

// emit passes a piece of the answer on to the client.
func (x *exchange) emit(p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p[0] != ':' || strings.Contains(string(p), "\ndata:") {
		x.answering = true
	}
	return x.writeLocked(p)
}

// write sends to a client that streams.
func (x *exchange) write(p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.writeLocked(p)
}

func (x *exchange) writeLocked(p []byte) error {
	if x.gone {
		return errClientGone
	}
	if !x.committed {
		x.committed = true
		h := x.w.Header()
		h.Set("Content-Type", contentSSE)
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // for an nginx in front
		x.w.WriteHeader(http.StatusOK)
	}
	if _, err := x.w.Write(p); err != nil {
		x.gone = true
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		x.gone = true
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// comment tells a client that waits which steps run; false once the answer has begun.
func (x *exchange) comment() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.answering || x.gone {
		return false
	}
	line := fmt.Sprintf(": remuda pipeline=%s running=%s waited=%s\n\n", x.name, strings.Join(slices.Sorted(maps.Keys(x.running)), ","), time.Since(x.began).Round(time.Second))
	return x.writeLocked([]byte(line)) == nil
}
