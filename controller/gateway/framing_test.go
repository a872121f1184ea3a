package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestFramingIsSeen however the bytes are cut.
func TestFramingIsSeen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOf(rapid.SampledFrom([]string{
			"Content-Length: 13\r\n", "content-length:1\n", "CONTENT-LENGTH:\r\n", "Transfer-Encoding: chunked\r\n", "tRANSFER-eNCODING:x\n",
			"X-Content-Length: 1\r\n", " Content-Length: 1\r\n", "Content-Lengt: 1\r\n", "Transfer-Encodin\r\n", "POST / HTTP/1.1\r\n", "\r\n", "\n", strings.Repeat("x", 40) + "content-length:\n",
		})).Draw(t, "lines")
		sent := []byte(strings.Join(lines, ""))
		length, coding := false, false
		for _, line := range lines {
			length = length || strings.HasPrefix(strings.ToLower(line), "content-length")
			coding = coding || strings.HasPrefix(strings.ToLower(line), "transfer-encoding")
		}
		var f framing
		for len(sent) > 0 {
			n := rapid.IntRange(1, len(sent)).Draw(t, "n")
			f.see(sent[:n])
			sent = sent[n:]
		}
		require.Equal(t, length, f.length.Load())
		require.Equal(t, coding, f.coding.Load())
	})
}

// TestAmbiguousWithoutAConnection: where nothing is known of what was sent, chunks are ambiguous.
func TestAmbiguousWithoutAConnection(t *testing.T) {
	r := &http.Request{ProtoMajor: 1, ProtoMinor: 1}
	require.False(t, ambiguous(r))
	r.TransferEncoding = []string{"chunked"}
	require.True(t, ambiguous(r))
	require.True(t, ambiguous(&http.Request{ProtoMajor: 1}))
	require.False(t, ambiguous(&http.Request{ProtoMajor: 2}))
}
