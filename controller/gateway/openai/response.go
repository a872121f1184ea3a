package openai

// ResponseID returns the ID of the response that a JSON object is, empty where it has none. Only the
// beginning of the object may be there.
func ResponseID(object []byte) string {
	w := Walk(object, 0, '{')
	for {
		key, v, ok := w.Next()
		if !ok {
			return ""
		}
		if string(key.Of(object)) == `"id"` && object[v.From] == '"' {
			id, _ := text(v.Of(object))
			return id
		}
	}
}
