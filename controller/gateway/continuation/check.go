package continuation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"remuda/controller/gateway/openai"
)

// Check tells how much of p, whole lines of a stream, a client can be sent. It is
// all of it, or what is before the line with which the engine has failed: one that is no
// server-sent event of an answer, an error, or an answer that was aborted. err says what
// was found. A stream that fails so can go on elsewhere, like one that was cut off.
func Check(p []byte) (n int, err error) {
	for n < len(p) {
		end := len(p)
		if i := bytes.IndexByte(p[n:], '\n'); i >= 0 {
			end = n + i + 1
		}
		if err := checkLine(p[n:end]); err != nil {
			return n, err
		}
		n = end
	}
	return n, nil
}

func checkLine(line []byte) error {
	what, at := openai.Classify(line)
	switch what {
	case openai.LineData:
		payload := at.Of(line)
		if !json.Valid(payload) || !utf8.Valid(payload) {
			return fmt.Errorf("the engine sent an event that is not JSON: %.100q", payload)
		}
		e, err := openai.ParseChunk(line, at)
		switch {
		case err != nil:
			return nil //nolint:nilerr // another kind of answer, which a Recorder refuses
		case e.Failed:
			return fmt.Errorf("the engine sent an error in its stream: %.300q", payload)
		case string(e.Finish.Of(line)) == "abort", string(e.Finish.Of(line)) == "error":
			return fmt.Errorf("the engine aborted its response with the finish reason %s", e.Finish.Of(line))
		}
	case openai.LineOther:
		if value, ok := bytes.CutPrefix(line, []byte("event:")); ok && string(bytes.TrimSpace(value)) == "error" {
			return errors.New("the engine sent an error in its stream")
		}
		return openai.CheckField(line)
	case openai.LineBlank, openai.LineComment, openai.LineDone:
	}
	return nil
}
