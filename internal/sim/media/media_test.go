package media_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/media"
)

// FuzzTranscription checks that no form makes the decoder panic, and that what passes is
// sane.
func FuzzTranscription(f *testing.F) {
	const file = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n"
	for _, seed := range []string{
		file + "neigh\r\n--x--\r\n",
		file + "RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x10\x00data\xff\xff\xff\xff\r\n--x--\r\n",
		"--x\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--x--\r\n", "", "--x",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, e := media.DecodeTranscription("multipart/form-data; boundary=x", body); e == nil {
			require.Positive(t, r.Frames())
			require.Positive(t, r.Spoken())
			require.NotEmpty(t, r.Text("transcribe"))
		} else {
			require.NotEmpty(t, e.Message)
		}
	})
}
