package ui

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"remuda/controller/api"
)

// inProcess sends requests to the API in this process, with the token of a person.
type inProcess struct {
	api   http.Handler
	token string
}

var _ http.RoundTripper = inProcess{}

// RoundTrip implements http.RoundTripper. A token that the client found in the environment
// of the server is never sent.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	defer in.Body.Close()
	in.Header.Del(api.HeaderToken)
	if t.token != "" {
		in.Header.Set(api.HeaderToken, t.token)
	}
	out := &response{header: http.Header{}}
	t.api.ServeHTTP(out, in)
	out.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: fmt.Sprintf("%d %s", out.status, http.StatusText(out.status)), StatusCode: out.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: out.header, Body: io.NopCloser(&out.body), ContentLength: int64(out.body.Len()), Request: r,
	}, nil
}

// response keeps an answer of the API.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *response) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}

// client returns a client of the API that uses token, none if it is empty.
func (u *UI) client(token string) (*api.Client, error) {
	return api.NewClient(api.Config{
		Addresses: []string{"http://controller.invalid"}, HTTPClient: &http.Client{Transport: inProcess{u.api, token}},
	})
}
