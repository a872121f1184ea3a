package sim

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"remuda/internal/sim/openai"
)

// input reads the body of any route but the fault switches' own.
func (s *Server) input(w http.ResponseWriter, r *http.Request, media string, fail func(*openai.Error)) ([]byte, bool) {
	body, ok := s.readBody(w, r, media, fail)
	if ok {
		s.hangAll(r.Context())
	}
	return body, ok
}

// readBody reads a body of a media type. It answers the request and reports false when
// there is none to be had.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, media string, fail func(*openai.Error)) ([]byte, bool) {
	got, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(got), media) {
		// vLLM answers 400 here, not 415.
		fail(openai.BadRequest("", "Unsupported Media Type: only '%s' is allowed, got %q", media, got))
		return nil, false
	}
	tooLarge := func() {
		fail(openai.HTTPError(http.StatusRequestEntityTooLarge, "the body is larger than the limit of "+itoa(s.cfg.MaxBody)+" bytes"))
	}
	if r.ContentLength > s.cfg.MaxBody {
		w.Header().Set("Connection", "close")
		tooLarge()
		return nil, false
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, s.cfg.MaxBody), r.ContentLength)
	var limit *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		s.noDeadline(w)
		return body, true
	case errors.As(err, &limit):
		tooLarge()
	case errors.As(err, &timeout) && timeout.Timeout():
		w.Header().Set("Connection", "close")
		fail(openai.HTTPError(http.StatusRequestTimeout, "the body did not arrive within "+s.cfg.BodyTimeout.String()))
	default:
		fail(openai.BadRequest("", "the body could not be read: %v", err))
	}
	return nil, false
}

// readAll is io.ReadAll with room for the announced length, within reason.
func readAll(r io.Reader, announced int64) ([]byte, error) {
	const most = 4 << 20
	buf := make([]byte, 0, min(max(announced, 0), most)+512)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, len(buf))
		}
	}
}
