package upstream_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway/upstream"
)

// BenchmarkDo measures a request and its answer of 1 KB over loopback, beside the same by
// net/http.Transport.
func BenchmarkDo(b *testing.B) {
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
	e := newEngine(b, func(p *peer) {
		br := bufio.NewReaderSize(p.TCPConn, 64<<10)
		for {
			length := 0
			for {
				line, err := br.ReadSlice('\n')
				if err != nil {
					return
				}
				if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
					length, _ = strconv.Atoi(string(bytes.TrimSpace(n)))
				}
				if len(line) == 2 {
					break
				}
			}
			if _, err := br.Discard(length); err != nil {
				return
			}
			if _, err := p.Write(answer); err != nil {
				return
			}
		}
	})
	header := http.Header{"Content-Type": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"bench"}}
	tr := newTransport(b)
	other := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
	b.Cleanup(other.CloseIdleConnections)
	ways := []struct {
		name string
		do   func(b *testing.B, body []byte) (*http.Response, error)
	}{
		{"upstream", func(b *testing.B, body []byte) (*http.Response, error) {
			return tr.Do(b.Context(), &upstream.Request{Addr: e.addr, Target: "/v1/completions", Header: header, Body: body})
		}},
		{"nethttp", func(b *testing.B, body []byte) (*http.Response, error) {
			r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+e.addr+"/v1/completions", bytes.NewReader(body))
			if err != nil {
				return nil, err
			}
			r.Header = header
			return other.RoundTrip(r)
		}},
	}
	for _, size := range []int{1 << 10, 220 << 10} {
		body := filled(size)
		for _, at := range []int{1, 10} {
			for _, way := range ways {
				b.Run(fmt.Sprintf("%dKB/at=%d/%s", size>>10, at, way.name), func(b *testing.B) {
					b.ReportAllocs()
					var left atomic.Int64
					left.Store(int64(b.N))
					var all sync.WaitGroup
					failed := make(chan error, at)
					b.ResetTimer()
					for range at {
						all.Go(func() {
							buf := make([]byte, 4<<10)
							for left.Add(-1) >= 0 {
								resp, err := way.do(b, body)
								for err == nil {
									_, err = resp.Body.Read(buf)
								}
								if err != io.EOF {
									failed <- err
									return
								}
								resp.Body.Close()
							}
						})
					}
					all.Wait()
					b.StopTimer()
					close(failed)
					require.NoError(b, <-failed)
				})
			}
		}
	}
}
