package upstream_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

// reading is what becomes of an answer that is read to its end.
type reading struct {
	status int
	body   string
	failed bool // in the header or in the body
	// ended: the answer has no end but the connection's.
	ended bool
	// over is how many bytes were left.
	over int
	may  bool // it allows to keep the connection
}

// source counts what is left, and notes that more was wanted.
type source struct {
	bytes.Reader
	dry bool
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.dry = s.dry || errors.Is(err, io.EOF)
	return n, err
}

// understand reads an answer by net/http alone.
func understand(answer []byte) reading {
	s := &source{}
	s.Reset(answer)
	br := bufio.NewReaderSize(s, 8<<10)
	for range 6 {
		resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodPost})
		if err != nil {
			return reading{failed: true, ended: s.dry}
		}
		if resp.StatusCode >= 100 && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		return reading{
			status: resp.StatusCode, body: string(body), failed: err != nil, ended: s.dry,
			over: br.Buffered() + s.Len(), may: !resp.Close && resp.StatusCode >= 200,
		}
	}
	return reading{failed: true}
}

// FuzzAnswer has an engine answer what it likes. It is understood as net/http does, its
// connection is not kept where anything is left, and the next request has its own answer.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"", fine, fine + fine, fine[:10], fine[:len(fine)-1], "HTTP/1.1 200 OK\r\n\r\nfine", "HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nfine", "HTTP/1.1 101 X\r\n\r\n" + fine, "HTTP/1.1 050 X\r\n\r\n" + fine,
		strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 5) + fine, strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 6) + fine,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nfine",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n4\r\nfine\r\n0\r\nA: b\r\n\r\n!",
		"HTTP/1.1 200 OK\nContent-Length: 4\n\nfine", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine",
	} {
		f.Add([]byte(s))
	}
	// The engine closes the connection where the answer needs its end. What an input has
	// left is there at once: it is one segment.
	var mu sync.Mutex
	var answer []byte
	var ends bool
	e := newEngine(f, func(p *peer) {
		for {
			_, body, ok := p.request()
			if !ok {
				return
			}
			if string(body) != "first" {
				p.say(fine)
				continue
			}
			mu.Lock()
			text, end := answer, ends
			mu.Unlock()
			if p.say(string(text)); end {
				return
			}
		}
	})
	tr := newTransport(f, func(cfg *upstream.Config) { cfg.MaxHeader = 1 << 20 })
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 8<<10 {
			return // more than a segment
		}
		want := understand(text)
		mu.Lock()
		answer, ends = text, want.ended
		mu.Unlock()
		before := e.accepted.Load()
		q := newQuestion(e.addr, []byte("first"))
		resp, body, err := ask(t, tr, q)
		q.free(t)
		require.Equal(t, want.failed, err != nil, "%v", err)
		if err == nil {
			require.Equal(t, want.status, resp.StatusCode)
			require.Equal(t, want.body, body)
		}
		works(t, tr, e.addr)
		again := e.accepted.Load() - before
		switch {
		case want.failed, want.ended, want.over > 0, !want.may:
			require.EqualValues(t, 2, again, "the connection was used again")
		case want.status != http.StatusNoContent && want.status != http.StatusNotModified:
			require.EqualValues(t, 1, again, "the connection was not used again")
		}
		tr.CloseIdle()
	})
}
