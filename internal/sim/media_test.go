package sim_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"image/png"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// transcribe sends a form and returns the answer.
func (s *sim1) transcribe(path string, fields map[string]string, status int) string {
	s.t.Helper()
	media, body := form(fields)
	got, answer, err := s.send(inference{path: path, media: media, body: body})
	require.NoError(s.t, err)
	require.Equal(s.t, status, got, answer)
	return answer
}

func TestTranscription(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const path = "/v1/audio/transcriptions"
	var r struct {
		Text  string
		Usage struct {
			Type    string
			Seconds int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(s.transcribe(path, nil, http.StatusOK)), &r))
	require.NotEmpty(t, r.Text)
	require.Equal(t, "duration", r.Usage.Type)
	require.Equal(t, 3, r.Usage.Seconds, "48000 bytes of 128 kbit/s")
	require.Equal(t, r.Text+"\n", s.transcribe(path, map[string]string{"response_format": "text"}, http.StatusOK))
	require.NotContains(t, s.transcribe(path, map[string]string{"language": "fr"}, http.StatusOK), r.Text)

	var verbose struct {
		Text, Task, Language, Duration string
		Segments                       []struct {
			Text string
			End  float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(s.transcribe("/v1/audio/translations", map[string]string{"response_format": "verbose_json"}, http.StatusOK)), &verbose))
	require.Equal(t, []string{"translate", "en", "3"}, []string{verbose.Task, verbose.Language, verbose.Duration})
	require.Equal(t, verbose.Text, verbose.Segments[0].Text)
	require.InDelta(t, 3, verbose.Segments[0].End, 0)

	said, done := "", ""
	stream := s.transcribe(path, map[string]string{"stream": "true"}, http.StatusOK)
	require.True(t, strings.HasSuffix(stream, "data: [DONE]\n\n"))
	for line := range strings.SplitSeq(stream, "\n\n") {
		var e struct{ Type, Delta, Text string }
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &e) != nil {
			continue
		}
		said += e.Delta
		if e.Type == "transcript.text.done" {
			done = e.Text
		}
	}
	require.Equal(t, r.Text, said)
	require.Equal(t, r.Text, done)

	for field, value := range map[string]string{"response_format": "srt", "stream": "perhaps", "temperature": "hot"} {
		require.Contains(t, s.transcribe(path, map[string]string{field: value}, http.StatusBadRequest), `"param":"`+field+`"`)
	}
	s.transcribe(path, map[string]string{"stream": "true", "response_format": "verbose_json"}, http.StatusBadRequest)
	_, body, err := s.send(inference{path: path, media: "multipart/form-data; boundary=x", body: "--x--\r\n"})
	require.NoError(t, err)
	require.Contains(t, body, "file is missing")
}

func TestSpeech(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const words = `{"input":"The quiet horse.","voice":"alloy"`
	resp, err := s.http.Do(s.request(t.Context(), http.MethodPost, "/v1/audio/speech", words+`}`))
	require.NoError(t, err)
	wav, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "audio/wav", resp.Header.Get("Content-Type"))
	require.Equal(t, "RIFF", string(wav[:4]))
	require.EqualValues(t, len(wav)-8, binary.LittleEndian.Uint32(wav[4:]))
	require.EqualValues(t, len(wav)-44, binary.LittleEndian.Uint32(wav[40:]))
	require.Len(t, wav, 44+4*4800, "a tenth of a second for each of four tokens")

	_, pcm := s.do(http.MethodPost, "/v1/audio/speech", words+`,"response_format":"pcm"}`)
	require.Equal(t, string(wav[44:]), pcm)
	var joined []byte
	for _, d := range s.data("/v1/audio/speech", words+`,"stream_format":"sse"}`) {
		var e struct {
			Type, Audio string
			Usage       map[string]int
		}
		require.NoError(t, json.Unmarshal([]byte(d), &e))
		part, err := base64.StdEncoding.DecodeString(e.Audio)
		require.NoError(t, err)
		joined = append(joined, part...)
		if e.Type == "speech.audio.done" {
			require.Equal(t, map[string]int{"input_tokens": 4, "output_tokens": 4, "total_tokens": 8}, e.Usage)
		}
	}
	require.Equal(t, wav, joined)

	// What the simulator speaks has the length that it hears.
	form := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" + string(wav) + "\r\n--x--\r\n"
	_, body, err := s.send(inference{path: "/v1/audio/transcriptions", media: "multipart/form-data; boundary=x", body: form})
	require.NoError(t, err)
	require.Contains(t, body, `"seconds":1`)
	for _, bad := range []string{`{}`, `{"input":"x","response_format":"mp3"}`, `{"input":"x","speed":9}`, `{"input":"x","stream_format":"x"}`} {
		s.refused(http.MethodPost, "/v1/audio/speech", bad, http.StatusBadRequest)
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var r struct {
		Data []struct {
			B64 string `json:"b64_json"`
		}
		Usage map[string]any
	}
	s.ok("/v1/images/generations", `{"prompt":"A horse","n":2,"size":"64x32"}`, &r)
	require.Len(t, r.Data, 2)
	require.NotEqual(t, r.Data[0], r.Data[1])
	raw, err := base64.StdEncoding.DecodeString(r.Data[0].B64)
	require.NoError(t, err)
	img, err := png.Decode(bytes.NewReader(raw))
	require.NoError(t, err)
	require.Equal(t, []int{64, 32}, []int{img.Bounds().Dx(), img.Bounds().Dy()})
	require.InDelta(t, 128, r.Usage["output_tokens"], 0)
	for _, bad := range []string{
		`{}`, `{"prompt":"x","n":11}`, `{"prompt":"x","size":"big"}`, `{"prompt":"x","size":"1x1"}`,
		`{"prompt":"x","response_format":"url"}`, `{"prompt":"x","stream":true}`,
	} {
		s.refused(http.MethodPost, "/v1/images/generations", bad, http.StatusBadRequest)
	}
}
