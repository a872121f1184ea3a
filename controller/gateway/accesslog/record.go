package accesslog

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// maxText is how many bytes of one text are logged. Paths, models and user agents
// are as long as clients like; what is cut off ends in "…".
const maxText = 512

// Record is one request that has ended. Its line has the fields under the names given
// here. A text that there is none of is "".
type Record struct {
	// Time ("time", RFC 3339 in UTC, microseconds) is when the request came.
	Time time.Time
	// ID ("id") is the gateway's own ID of the request, which the answer's X-Request-Id
	// has; ClientID ("client_id") is the client's X-Request-Id, and TraceID ("trace_id")
	// the trace of the W3C trace context.
	ID, ClientID, TraceID string
	// Client ("client") is the address of the client.
	Client string
	// Key ("key") is the name of the API key. Never put its secret here.
	Key string
	// Method ("method") and Path ("path") are the request's. The path is to be
	// given without its query, which may hold secrets.
	Method, Path string
	// Model ("model") is what was asked for, and Replica ("replica") the one that
	// answered, or was tried last.
	Model, Replica string
	// Status ("status") is the HTTP status that the client got; 499 if it left.
	Status int
	// Code ("code") is the code of the error that the client got.
	Code string
	// Queue ("queue_s") is how long it waited for an engine in all.
	Queue time.Duration
	// FirstByte ("first_byte_s") is the time from Time to the first byte of the
	// answer. 0 means that none came; the line has null then.
	FirstByte time.Duration
	// Duration ("duration_s") is the time from Time to the end of the answer.
	Duration time.Duration
	// Attempts ("attempts") is how many engines it was sent to.
	Attempts int
	// RequestBytes ("request_bytes") and ResponseBytes ("response_bytes") are the
	// lengths of the bodies.
	RequestBytes, ResponseBytes int64
	// Stream ("stream") says that the answer was a stream, and Continued
	// ("continued") that another engine finished it.
	Stream, Continued bool
	// UserAgent ("user_agent") is what the client calls itself.
	UserAgent string
	// PromptTokens ("prompt_tokens") and CompletionTokens ("completion_tokens") are the
	// tokens of the prompt and of the answer, and CachedTokens ("cached_tokens") those of
	// the prompt that the engine had in its cache. The line leaves out what is 0.
	PromptTokens, CachedTokens, CompletionTokens int64
	// TokensEstimated ("tokens_estimated") says that the gateway estimated the tokens,
	// because the engine reported none. The line leaves it out if it is false.
	TokensEstimated bool
}

// MarshalJSON returns the record's line without its line break. Nothing that a client sends
// can break the line: control characters are escaped or become U+FFFD, as do bytes that are
// not UTF-8.
func (r *Record) MarshalJSON() ([]byte, error) {
	fields := struct {
		Time             string   `json:"time"`
		ID               string   `json:"id"`
		ClientID         string   `json:"client_id"`
		TraceID          string   `json:"trace_id"`
		Client           string   `json:"client"`
		Key              string   `json:"key"`
		Method           string   `json:"method"`
		Path             string   `json:"path"`
		Model            string   `json:"model"`
		Replica          string   `json:"replica"`
		Status           int      `json:"status"`
		Code             string   `json:"code"`
		Queue            float64  `json:"queue_s"`
		FirstByte        *float64 `json:"first_byte_s"`
		Duration         float64  `json:"duration_s"`
		Attempts         int      `json:"attempts"`
		RequestBytes     int64    `json:"request_bytes"`
		ResponseBytes    int64    `json:"response_bytes"`
		Stream           bool     `json:"stream"`
		Continued        bool     `json:"continued"`
		UserAgent        string   `json:"user_agent"`
		PromptTokens     int64    `json:"prompt_tokens,omitempty"`
		CachedTokens     int64    `json:"cached_tokens,omitempty"`
		CompletionTokens int64    `json:"completion_tokens,omitempty"`
		TokensEstimated  bool     `json:"tokens_estimated,omitempty"`
	}{
		Time: r.Time.UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
		ID:   text(r.ID), ClientID: text(r.ClientID), TraceID: text(r.TraceID), Client: text(r.Client), Key: text(r.Key),
		Method: text(r.Method), Path: text(r.Path), Model: text(r.Model), Replica: text(r.Replica),
		Status: r.Status, Code: text(r.Code),
		Queue: seconds(r.Queue), Duration: seconds(r.Duration), Attempts: r.Attempts,
		RequestBytes: r.RequestBytes, ResponseBytes: r.ResponseBytes,
		Stream: r.Stream, Continued: r.Continued, UserAgent: text(r.UserAgent),
		PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, CompletionTokens: r.CompletionTokens,
		TokensEstimated: r.TokensEstimated,
	}
	if r.FirstByte > 0 {
		s := seconds(r.FirstByte)
		fields.FirstByte = &s
	}
	return json.Marshal(&fields)
}

// seconds has the precision of a microsecond. A negative duration is 0.
func seconds(d time.Duration) float64 {
	return float64(max(d.Microseconds(), 0)) / 1e6
}

// text cuts a text to maxText bytes. It replaces DEL and the C1 control characters, which
// JSON need not escape: some readers take them for the end of a line, some terminals for a
// command.
func text(s string) string {
	cut := len(s) > maxText
	if cut {
		n := maxText
		for n > maxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n-- // not in the middle of a character
		}
		s = s[:n]
	}
	s = strings.Map(func(r rune) rune {
		if r >= 0x7f && r < 0xa0 {
			return utf8.RuneError
		}
		return r
	}, s)
	if cut {
		s += "…"
	}
	return s
}
