// Package media has the requests and answers of the routes for sound and pictures:
// transcriptions and translations in vLLM's shape, speech and images in OpenAI's.
//
// The sound of a speech and the pixels of an image follow from the tokens that the model
// generates for them, so equal requests have equal bytes. The words of a transcription
// follow from the bytes of the file.
package media
