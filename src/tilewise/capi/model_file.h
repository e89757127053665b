/* The reader of model files. */
#ifndef TILEWISE_MODEL_FILE_H
#define TILEWISE_MODEL_FILE_H

#include "model.h"

/* Fill a zeroed model from a file that tilewise/capi/_export_file.py wrote. Every byte is checked before use.
 * Return TILEWISE_OK or an error; the caller closes the model in both cases. */
int tw_model_file_read(const char *path, tilewise_model *model);

#endif
