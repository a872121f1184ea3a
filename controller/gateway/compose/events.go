package compose

import (
	"bytes"
	"encoding/json"

	"remuda/controller/pipeline"
)

// events reads a step's stream, and passes it on as the client's own.
type events struct {
	x     *exchange
	call  pipeline.Call
	limit int
	room  *room

	// line is the beginning of one whose end has not come yet.
	line []byte
	text bytes.Buffer
	done bool
	// emitted: a piece of the answer was passed on.
	emitted bool
	answer  pipeline.Answer
}

// feed takes what has come. Its error ends the stream.
func (e *events) feed(p []byte) error {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			e.line = append(e.line, p...)
			break
		}
		line := p[:i]
		if len(e.line) > 0 {
			line = append(e.line, line...)
		}
		if err := e.take(bytes.TrimSuffix(line, []byte("\r"))); err != nil {
			return err
		}
		e.line, p = e.line[:0], p[i+1:]
	}
	if len(e.line)+e.text.Len() > e.limit {
		return tooLong(e.limit)
	}
	return nil
}

// take reads one line. Engines send each event's data in one.
func (e *events) take(line []byte) error {
	if e.done || len(line) == 0 {
		return nil
	}
	if line[0] == ':' {
		return e.emit(append(bytes.Clone(line), "\n\n"...)) // what the gateway tells those who wait
	}
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return nil
	}
	data = bytes.TrimSpace(data)
	if string(data) == "[DONE]" {
		e.done = true
		return nil
	}
	return e.event(data)
}

// delta is what an event of either API adds.
type delta struct {
	Choices []struct {
		Delta *struct {
			Content *string `json:"content"`
		} `json:"delta"`
		Text         *string `json:"text"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage          `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (e *events) event(data []byte) error {
	var v delta
	if err := json.Unmarshal(data, &v); err != nil {
		return badAnswer("invalid event in the response: %v", err)
	}
	if len(v.Error) > 0 && string(v.Error) != "null" {
		f := badAnswer("the response ended with an error")
		f.take(v.Error)
		return f
	}
	if v.Usage != nil {
		e.answer.Usage = v.Usage.counts()
	}
	if len(v.Choices) == 0 {
		return nil // the usage, which is told at the end, for all steps
	}
	one := v.Choices[0]
	text := ""
	switch {
	case one.Delta != nil && one.Delta.Content != nil:
		text = *one.Delta.Content
	case one.Text != nil:
		text = *one.Text
	}
	if err := e.room.take(len(text)); err != nil {
		return err
	}
	e.text.WriteString(text)
	if one.FinishReason != nil {
		e.answer.FinishReason = *one.FinishReason
	}
	if e.call.Emit == nil {
		return nil
	}
	if e.call.Endpoint == e.x.asked.endpoint {
		return e.emit(event(e.x.adopt(data)))
	}
	return e.emit(event(e.x.chunk(text, !e.emitted, one.FinishReason)))
}

// emit passes a piece on.
func (e *events) emit(p []byte) error {
	if e.call.Emit == nil {
		return nil
	}
	if p[0] != ':' {
		e.emitted = true
	}
	return e.call.Emit(p)
}

// end is the whole answer, once nothing more comes.
func (e *events) end(served error) (pipeline.Answer, error) {
	if !e.done && served == nil && len(e.line) > 0 {
		if err := e.take(bytes.TrimSuffix(e.line, []byte("\r"))); err != nil {
			return pipeline.Answer{}, err
		}
	}
	switch {
	case e.done:
	case served != nil:
		return pipeline.Answer{}, badAnswer("%v", served)
	default:
		return pipeline.Answer{}, badAnswer("the response stream ended without [DONE]")
	}
	e.answer.Text = e.text.String()
	return e.answer, nil
}

// event is a server-sent event with JSON.
func event(data []byte) []byte {
	b := make([]byte, 0, len(data)+8)
	b = append(b, "data: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}
