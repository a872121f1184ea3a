package upstream_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

// TestWhatIsKept goes through answers: how each is understood, and whether its connection
// serves another request.
func TestWhatIsKept(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, c := range []struct {
		name, answer string
		status       int
		body         string
		kept         bool
		// ends: the engine closes the connection behind the answer.
		ends bool
		// fails: the body is not whole.
		fails   bool
		trailer http.Header
	}{
		{name: "length", answer: fine, status: 200, body: "fine", kept: true},
		{name: "length of nothing", answer: ok + "Content-Length: 0\r\n\r\n", status: 200, kept: true},
		{name: "chunks", answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n2;x=y\r\nne\r\n0\r\n\r\n", status: 200, body: "fine", kept: true},
		{name: "chunks and a trailer", answer: ok + "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\nfine\r\n0\r\nX-Sum: 7\r\n\r\n",
			status: 200, body: "fine", kept: true, trailer: http.Header{"X-Sum": {"7"}}},
		{name: "no chunk but the last", answer: ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200, kept: true},
		{name: "204", answer: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, kept: true},
		{name: "204 of length 0", answer: "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", status: 204, kept: true},
		{name: "304", answer: "HTTP/1.1 304 Not Modified\r\n\r\n", status: 304, kept: true},
		{name: "HTTP/1.0 that keeps", answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nfine", status: 200, body: "fine", kept: true},
		{name: "informational first", answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + fine, status: 200, body: "fine", kept: true},
		{name: "an error", answer: "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", status: 503, body: "busy", kept: true},

		{name: "Connection: close", answer: ok + "Connection: close\r\nContent-Length: 4\r\n\r\nfine", status: 200, body: "fine"},
		{name: "close among others", answer: ok + "Connection: x, Close\r\nContent-Length: 4\r\n\r\nfine", status: 200, body: "fine"},
		{name: "close of an empty answer", answer: ok + "Connection: close\r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "HTTP/1.0", answer: "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfine", status: 200, body: "fine"},
		{name: "no length", answer: ok + "\r\nfine", status: 200, body: "fine", ends: true},
		{name: "no length, yet it keeps", answer: ok + "Connection: keep-alive\r\n\r\nfine", status: 200, body: "fine", ends: true},
		{name: "short of its length", answer: ok + "Content-Length: 5\r\n\r\nfine", status: 200, body: "fine", ends: true, fails: true},
		{name: "chunks without an end", answer: ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n", status: 200, body: "fine", ends: true, fails: true},
		{name: "chunks cut in the trailer", answer: ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\nX-Sum: ", status: 200, body: "fine", ends: true, fails: true},
		{name: "broken chunks", answer: ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\nzz\r\n", status: 200, body: "fine", fails: true},
		{name: "bytes behind the body", answer: fine + "!", status: 200, body: "fine"},
		{name: "bytes behind chunks", answer: ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n\r\n", status: 200, body: "fine"},
		{name: "two answers", answer: fine + fine, status: 200, body: "fine"},
		{name: "two answers, the first empty", answer: ok + "Content-Length: 0\r\n\r\n" + fine, status: 200},
		{name: "204 with a body", answer: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nfine", status: 204},
		{name: "204 whose body may come", answer: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n", status: 204},
		{name: "304 whose chunks may come", answer: "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", status: 304},
		{name: "101", answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", status: 101},
		{name: "101 and more", answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + fine, status: 101},
		{name: "a status below 100", answer: "HTTP/1.1 099 Odd\r\nContent-Length: " + "42\r\n\r\n" + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine", status: 99,
			body: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"},
	} {
		for _, size := range []int{0, 100, 2 * upstream.Inline} {
			t.Run(c.name+map[int]string{0: ", no body", 100: ", small body"}[size], func(t *testing.T) {
				t.Parallel()
				e := newEngine(t, func(p *peer) {
					for first := p.nth == 1; ; first = false {
						switch _, _, ok := p.request(); {
						case !ok:
							return
						case !first:
							p.say(fine)
						default:
							if p.say(c.answer); c.ends {
								return
							}
						}
					}
				})
				tr := newTransport(t)
				q := newQuestion(e.addr, filled(size))
				resp, text, err := ask(t, tr, q)
				if c.fails {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, c.status, resp.StatusCode)
				require.Equal(t, c.body, text)
				if c.trailer != nil {
					require.Equal(t, c.trailer, resp.Trailer)
				}
				q.free(t)
				want, conns := 0, int64(2)
				if c.kept {
					want, conns = 1, 1
				}
				if all, _ := upstream.Kept(tr); all < want && size > upstream.Inline {
					return // it took too long to tell that the request was written: TestLargeBodies tries again
				}
				kept(t, tr, want)
				if !c.kept {
					soon(t, "the end of the connection", func() bool { return e.open.Load() == 0 })
				}
				works(t, tr, e.addr)
				require.Equal(t, conns, e.accepted.Load(), "connections")
			})
		}
	}
}

// TestLargeBodies sends requests that are written beside the reading until a connection is
// kept behind one, and used again. A machine may be too slow for that at times.
func TestLargeBodies(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t)
	soon(t, "a connection that is used again", func() bool {
		q := newQuestion(e.addr, filled(10*upstream.Inline))
		_, text, err := ask(t, tr, q)
		require.NoError(t, err)
		require.Equal(t, "fine", text)
		q.free(t)
		before := e.accepted.Load()
		works(t, tr, e.addr)
		return e.accepted.Load() == before
	})
}

// TestUnaskedAnswer has an engine send another answer on a connection that is kept.
func TestUnaskedAnswer(t *testing.T) {
	for _, unasked := range []string{
		"!", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret",
		"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
	} {
		again := make(chan struct{})
		e := newEngine(t, func(p *peer) {
			if p.nth == 1 {
				p.request()
				p.say(fine)
				<-again
				p.say(unasked)
				p.gone()
				return
			}
			always(fine)(p)
		})
		tr := newTransport(t)
		works(t, tr, e.addr)
		kept(t, tr, 1)
		close(again)
		soon(t, "the bytes that nobody asked for", func() bool { _, quiet := upstream.Kept(tr); return quiet == 0 })
		works(t, tr, e.addr)
		require.EqualValues(t, 2, e.accepted.Load(), "connections")
	}
}

// TestCloseOfAnAnswer closes answers in the middle, and reads what is closed.
func TestCloseOfAnAnswer(t *testing.T) {
	e := newEngine(t, always(fine))
	tr := newTransport(t)
	q := newQuestion(e.addr, nil)
	resp, err := tr.Do(t.Context(), &q.Request)
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = io.ReadFull(resp.Body, one)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	kept(t, tr, 0)
	soon(t, "the end of the connection", func() bool { return e.open.Load() == 0 })
	_, err = resp.Body.Read(one)
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)

	// An answer that has ended has nothing to do with its connection any more.
	q = newQuestion(e.addr, nil)
	resp, err = tr.Do(t.Context(), &q.Request)
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	kept(t, tr, 1)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, resp.Body.Close())
	_, err = resp.Body.Read(one)
	require.ErrorIs(t, err, io.EOF)
	works(t, tr, e.addr)
	require.EqualValues(t, 2, e.accepted.Load(), "connections")
}
