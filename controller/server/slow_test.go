package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/server"
)

// TestABodyThatNeverComesHoldsNothing: whatever is asked for, with or without a token, a
// client that does not send the body that it promised is let go of.
func TestABodyThatNeverComesHoldsNothing(t *testing.T) {
	t.Parallel()
	m := cluster(t, 1, settings{acl: true, server: func(c *server.Config) { c.BodyTimeout = 100 * time.Millisecond }})[0]
	for _, request := range []string{
		"PUT /v1/models", "GET /v1/models", "PUT /v1/models?nonsense=1", "PUT /nowhere", "POST /v1/models", "PUT /live",
	} {
		t.Run(request, func(t *testing.T) {
			c, err := net.Dial("tcp", strings.TrimPrefix(m.url, "http://"))
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(patience/4)))
			_, err = fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", request)
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.GreaterOrEqual(t, resp.StatusCode, 400)
			_, err = io.Copy(io.Discard, c)
			require.NoError(t, err, "the connection is closed")
		})
	}
}

// deadlines is a writer that remembers what it was bounded by.
type deadlines struct {
	*httptest.ResponseRecorder
	write time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = t; return nil }

// TestEveryAnswerHasADeadlineOfItsOwn: a connection keeps the deadline of the request
// before, which may be over.
func TestEveryAnswerHasADeadlineOfItsOwn(t *testing.T) {
	m := one(t)
	for path, status := range map[string]int{
		"/live": http.StatusOK, "/v1/models": http.StatusOK, "/nowhere": http.StatusNotFound, "/v1/models?nonsense=1": http.StatusBadRequest, "/v1/evict": http.StatusMethodNotAllowed,
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		m.server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		require.Equal(t, status, w.Code, path)
		require.True(t, w.write.After(time.Now()), "%s: the answer's deadline is %s", path, w.write)
	}
}
