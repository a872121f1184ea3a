package sim

import (
	"net/http"
	"strconv"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// writeJSON answers with a body that is JSON already. A client that is gone
// cannot be told anything, so write errors are of no use.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func writeValue(w http.ResponseWriter, v any) { writeJSON(w, http.StatusOK, sse.JSON(v)) }

func writeError(w http.ResponseWriter, e *openai.Error) { writeJSON(w, e.Status, e.JSON()) }

// refuse writes errors to w.
func refuse(w http.ResponseWriter) func(*openai.Error) {
	return func(e *openai.Error) { writeError(w, e) }
}
