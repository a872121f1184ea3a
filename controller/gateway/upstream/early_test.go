package upstream_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEarlyAnswer has an engine answer before it has read a request that is larger than
// what sockets hold.
func TestEarlyAnswer(t *testing.T) {
	const size = 32 << 20
	for _, c := range []struct {
		name   string
		answer string
		// reads: the engine reads the request once it has answered. Whether the connection
		// is kept is a matter of time then.
		reads bool
	}{
		{"and reads the rest", fine, true},
		{"and reads the rest of an empty answer", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true},
		{"and reads no more", fine, false},
		{"and reads no more after an empty answer", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false},
		{"and says so", "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfine", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{})
			e := newEngine(t, func(p *peer) {
				if p.nth > 1 {
					always(fine)(p)
					return
				}
				r, err := http.ReadRequest(p.br)
				if err != nil {
					return
				}
				p.say(c.answer)
				if !c.reads {
					<-over
				}
				_, _ = io.Copy(io.Discard, r.Body)
				always(fine)(p)
			})
			t.Cleanup(func() { close(over) })
			tr := newTransport(t)
			q := newQuestion(e.addr, filled(size))
			_, text, err := ask(t, tr, q)
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(c.answer, text))
			q.free(t)
			if !c.reads {
				kept(t, tr, 0)
			}
			works(t, tr, e.addr)
		})
	}
}

// TestEarlyAnswerAndEnd has an engine answer and end the connection without reading.
func TestEarlyAnswerAndEnd(t *testing.T) {
	for size, n := range sizes {
		read, gone := make(chan struct{}), make(chan struct{})
		e := newEngine(t, func(p *peer) {
			if p.nth > 1 {
				always(fine)(p)
				return
			}
			_, _ = p.br.Peek(1)
			p.say(fine)
			<-read // a reset may overtake what was not read
			_ = p.Close()
			close(gone)
		})
		tr := newTransport(t)
		q := newQuestion(e.addr, filled(n))
		_, text, err := ask(t, tr, q)
		close(read)
		<-gone
		require.NoError(t, err, size)
		require.Equal(t, "fine", text, size)
		q.free(t)
		works(t, tr, e.addr)
	}
}

// TestReleaseBesideAnAnswer looks at when a request is released whose answer has begun.
func TestReleaseBesideAnAnswer(t *testing.T) {
	read := make(chan struct{})
	e := newEngine(t, func(p *peer) {
		r, err := http.ReadRequest(p.br)
		if err != nil {
			return
		}
		p.say(fine[:len(fine)-1])
		<-read
		_, _ = io.Copy(io.Discard, r.Body)
		p.say("e")
		p.gone()
	})
	tr := newTransport(t)
	q := newQuestion(e.addr, filled(32<<20))
	resp, err := tr.Do(t.Context(), &q.Request)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Zero(t, q.released.Load(), "it is released and goes on being written")
	close(read)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "fine", string(text))
	q.free(t)
}

// TestLongRequestHeader has an engine answer, and not read, a request whose header is
// larger than what sockets hold.
func TestLongRequestHeader(t *testing.T) {
	over := make(chan struct{})
	e := newEngine(t, func(p *peer) {
		if p.nth > 1 {
			always(fine)(p)
			return
		}
		_, _ = p.br.Peek(1)
		p.say("HTTP/1.1 431 Too Large\r\nContent-Length: 4\r\n\r\nfine")
		<-over
	})
	t.Cleanup(func() { close(over) })
	tr := newTransport(t)
	q := newQuestion(e.addr, filled(10))
	for range 1000 {
		q.Header.Add("X-Long", strings.Repeat("x", 16<<10))
	}
	resp, text, err := ask(t, tr, q)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	require.Equal(t, "fine", text)
	q.free(t)
	kept(t, tr, 0)
	works(t, tr, e.addr)
}

// TestRequestOnTheWire reads what engines get.
func TestRequestOnTheWire(t *testing.T) {
	type seen struct {
		r    *http.Request
		body string
	}
	got := make(chan seen, 1)
	e := newEngine(t, func(p *peer) {
		for {
			r, body, ok := p.request()
			if !ok {
				return
			}
			got <- seen{r, string(body)}
			p.say(fine)
		}
	})
	tr := newTransport(t)
	for size, n := range sizes {
		body := filled(n)
		want := string(body)
		q := newQuestion(e.addr, body)
		q.Target = "/v1/chat/completions?a=b%20c"
		q.Header = http.Header{
			"X-One": {"1"}, "X-Two": {"a", "b"}, "X-Bad": {"a\r\nX-Smuggled: b"}, "X Bad\r\n": {"x"},
			"Host": {"elsewhere"}, "Content-Length": {"999"}, "Transfer-Encoding": {"chunked"}, "Trailer": {"X"},
		}
		before := q.Header.Clone()
		_, _, err := ask(t, tr, q)
		require.NoError(t, err)
		s := <-got
		require.Equal(t, http.MethodPost, s.r.Method)
		require.Equal(t, q.Target, s.r.RequestURI)
		require.Equal(t, e.addr, s.r.Host)
		require.True(t, want == s.body, size)
		require.EqualValues(t, n, s.r.ContentLength)
		require.Equal(t, http.Header{
			"X-One": {"1"}, "X-Two": {"a", "b"}, "X-Bad": {"a  X-Smuggled: b"}, "Content-Length": s.r.Header["Content-Length"],
		}, s.r.Header)
		require.Equal(t, before, q.Header, "it was changed")
	}
	require.EqualValues(t, 1, e.accepted.Load(), "connections")
}
