package accesslog

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// maxText is how many bytes of one text are logged. Paths, models and user agents
// are as long as clients like; what is cut off ends in "…".
const maxText = 512

// Record is one request that has ended. A line has all fields in this order, under
// the names given here. Texts that there are none of are "".
type Record struct {
	// Time ("time", RFC 3339 in UTC, microseconds) is when the request came.
	Time time.Time
	// ID ("id") is what X-Request-Id says, and TraceID ("trace_id") the trace of
	// the W3C trace context.
	ID, TraceID string
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
}

// Append appends the record's line, which is one JSON object and a line break, and
// returns the extended buffer. Nothing that a client sends can break the line:
// control characters are escaped, and bytes that are not UTF-8 become U+FFFD.
func (r *Record) Append(b []byte) []byte {
	b = append(b, `{"time":"`...)
	b = appendTime(b, r.Time)
	b = append(b, '"')
	b = text(b, "id", r.ID)
	b = text(b, "trace_id", r.TraceID)
	b = text(b, "client", r.Client)
	b = text(b, "key", r.Key)
	b = text(b, "method", r.Method)
	b = text(b, "path", r.Path)
	b = text(b, "model", r.Model)
	b = text(b, "replica", r.Replica)
	b = number(b, "status", int64(r.Status))
	b = text(b, "code", r.Code)
	b = seconds(b, "queue_s", r.Queue)
	if r.FirstByte > 0 {
		b = seconds(b, "first_byte_s", r.FirstByte)
	} else {
		b = append(b, `,"first_byte_s":null`...)
	}
	b = seconds(b, "duration_s", r.Duration)
	b = number(b, "attempts", int64(r.Attempts))
	b = number(b, "request_bytes", r.RequestBytes)
	b = number(b, "response_bytes", r.ResponseBytes)
	b = boolean(b, "stream", r.Stream)
	b = boolean(b, "continued", r.Continued)
	b = text(b, "user_agent", r.UserAgent)
	return append(b, "}\n"...)
}

// appendDropped appends the line that stands for lines that are missing.
func appendDropped(b []byte, now time.Time, lines uint64) []byte {
	b = append(b, `{"time":"`...)
	b = appendTime(b, now)
	b = append(b, `","dropped":`...)
	b = strconv.AppendUint(b, lines, 10)
	return append(b, "}\n"...)
}

func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z07:00")
}

func name(b []byte, key string) []byte {
	b = append(b, ',', '"')
	b = append(b, key...)
	return append(b, '"', ':')
}

func number(b []byte, key string, v int64) []byte {
	return strconv.AppendInt(name(b, key), v, 10)
}

func boolean(b []byte, key string, v bool) []byte {
	return strconv.AppendBool(name(b, key), v)
}

// seconds writes six digits after the point. A negative duration is 0.
func seconds(b []byte, key string, d time.Duration) []byte {
	us := max(d.Microseconds(), 0)
	b = strconv.AppendInt(name(b, key), us/1e6, 10)
	b = append(b, '.')
	rest := us % 1e6
	for unit := int64(1e5); unit > 0; unit /= 10 {
		b = append(b, byte('0'+rest/unit%10))
	}
	return b
}

func text(b []byte, key, s string) []byte {
	b = append(name(b, key), '"')
	cut := len(s) > maxText
	if cut {
		n := maxText
		for n > maxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n-- // not in the middle of a character
		}
		s = s[:n]
	}
	b = escape(b, s)
	if cut {
		b = append(b, "…"...)
	}
	return append(b, '"')
}

const hexDigits = "0123456789abcdef"

// plain says of each ASCII byte whether it stands for itself in JSON.
var plain = func() (out [utf8.RuneSelf]bool) {
	for c := ' '; c < utf8.RuneSelf-1; c++ { // DEL is escaped: it is no fun in a terminal
		out[c] = c != '"' && c != '\\'
	}
	return out
}()

// escape appends s as the inside of a JSON string (RFC 8259 section 7).
func escape(b []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if plain[c] {
				i++
				continue
			}
			b = append(b, s[from:i]...)
			if c == '"' || c == '\\' {
				b = append(b, '\\', c)
			} else {
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		// The C1 controls and the two line separators of Unicode end a line for
		// some readers.
		if bad := r == utf8.RuneError && size == 1; bad || r < 0xa0 || r == 0x2028 || r == 0x2029 {
			b = append(b, s[from:i]...)
			b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
			from = i + size
		}
		i += size
	}
	return append(b, s[from:]...)
}
